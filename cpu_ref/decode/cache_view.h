#pragma once
// A paged cache as its user has it: pools of any element type and strides, read where they lie.

#include <cstdint>
#include <string_view>
#include <vector>

namespace splash::cpu_ref {

enum class Element { f64, f32, f16, bf16, e4m3 };

// Floats of float16s, in bits.
void floats_of_halves(const uint16_t* halves, int64_t count, float* to);

Element element_from_string(std::string_view name);  // as PyTorch names them; throws InvalidArgument

// [pages, page_size, kv_heads, head_dim] in any order of the first three; strides in elements, the last 1.
struct Pool {
  Element element = Element::f32;
  const void* data = nullptr;
  int64_t page_stride = 0, token_stride = 0, head_stride = 0;
  double scale = 1;  // of e4m3: what stored numbers are multiplied by

  // `count` keys of a page and head from `token` on, in double or float: to[key * head_dim + c]. A double is
  // exact; a float is the nearest, or infinite.
  template <class T>
  void read(int64_t page, int64_t token, int64_t head, int64_t count, int64_t head_dim, T* to) const;
};

// PagedCache's members (decode.h), over pools.
struct CacheView {
  Pool keys{}, values{};
  int64_t pool_pages = 0, page_size = 16, kv_heads = 1, head_dim = 64;
  int64_t batch = 1, width = 1;
  std::vector<int32_t> table{};      // [batch, width]: pages; below 0: a hole
  std::vector<int32_t> lengths{};    // [batch]
  int bits = 0;                      // of the pages' low-bit copies; 0: there are none
  const uint8_t* low_bit = nullptr;  // [pool_pages, kv_heads] copies (core/low_bit_page.h)

  int64_t pages() const { return pool_pages; }
  int64_t page_of(int64_t sequence, int64_t key) const {
    return table[static_cast<size_t>(sequence * width + key / page_size)];
  }
};

}  // namespace splash::cpu_ref
