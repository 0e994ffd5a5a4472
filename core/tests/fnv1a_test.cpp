#include "core/fnv1a.h"

#include <string_view>

#include <doctest/doctest.h>

using namespace splash;

namespace {

uint64_t hash_of(std::string_view text) {
  return Fnv1a().add(std::as_bytes(std::span(text))).value();
}

}  // namespace

TEST_CASE("the hash is that of its authors' test vectors, in one piece or in several") {
  CHECK(hash_of("") == 0xcbf29ce484222325);
  CHECK(hash_of("a") == 0xaf63dc4c8601ec8c);
  CHECK(hash_of("foobar") == 0x85944171f73967e8);
  const std::string_view foo = "foo", bar = "bar";
  CHECK(Fnv1a().add(std::as_bytes(std::span(foo))).add(std::as_bytes(std::span(bar))).value() ==
        hash_of("foobar"));
}
