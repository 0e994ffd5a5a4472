#include "core/cu_seqlens.h"

#include <doctest/doctest.h>

#include "core/error.h"

using namespace splash;

TEST_CASE("packed documents are named by their lengths") {
  using Indices = std::vector<int64_t>;
  CHECK(cu_seqlens_from_string("7", 7) == Indices{0, 7});
  CHECK(cu_seqlens_from_string("3x2", 6) == Indices{0, 2, 4, 6});
  CHECK(cu_seqlens_from_string("4+2x1+3", 9) == Indices{0, 4, 5, 6, 9});
  CHECK_THROWS_WITH_AS(cu_seqlens_from_string("8x2", 15),
                       "documents are '8x2'; they must be lengths of at least 1 that sum to 15, written as "
                       "8x2048 or 4096+2x512",
                       InvalidArgument);
  for (const char* wrong :
       {"", "+6", "6+", "3++3", "5", "7", "0x1+6", "6+0", "-1+7", "x6", "2x", "2x3x1", "2 x3", "2,4",
        "9223372036854775807x9223372036854775807", "99999999999999999999", "-1x-6"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(cu_seqlens_from_string(wrong, 6), InvalidArgument);
  }
}
