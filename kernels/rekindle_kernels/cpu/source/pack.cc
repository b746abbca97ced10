// Writes weights in the packed form of the linear layers. Called by Python, in threads.
#include "pack.h"

#include "blocks.h"
#include "kernels.h"
#include "vector.h"

namespace rekindle {
namespace {

template <typename Number>
void pack_numbers(Number* packed, int64_t first, const Number* weight, int64_t rows, int64_t in) {
  pack<256>(packed, first, rows, in, [=](int64_t row, int64_t begin) { return weight + row * in + begin; });
}

template <typename Kind, typename Number>
void pack_blocks(Number* packed, int64_t first, const uint8_t* blocks, int64_t rows, int64_t in) {
  float wide[Kind::kNumbers];
  Number numbers[Kind::kNumbers];
  pack<Kind::kNumbers>(packed, first, rows, in, [&](int64_t row, int64_t begin) {
    Kind::read(blocks + (row * in + begin) / Kind::kNumbers * Kind::kBytes, wide);
    for (int i = 0; i < Kind::kNumbers; ++i)
      if constexpr (sizeof(Number) == 4) {
        numbers[i] = wide[i];
      } else {
        numbers[i] = narrow(wide[i]);
      }
    return static_cast<const Number*>(numbers);
  });
}

// Reads blocks of the kind with this name in ggml; returns false for an unknown kind.
template <typename Number>
bool pack_kind(const char* name, Number* packed, int64_t first, const uint8_t* blocks, int64_t rows, int64_t in) {
  const struct {
    const char* name;
    void (*pack)(Number*, int64_t, const uint8_t*, int64_t, int64_t);
  } kinds[] = {{"Q4_0", pack_blocks<Q4_0, Number>}, {"Q4_1", pack_blocks<Q4_1, Number>},
               {"Q8_0", pack_blocks<Q8_0, Number>}, {"Q4_K", pack_blocks<Q4_K, Number>},
               {"Q5_K", pack_blocks<Q5_K, Number>}, {"Q6_K", pack_blocks<Q6_K, Number>}};
  for (const auto& kind : kinds) {
    if (std::strcmp(name, kind.name)) continue;
    kind.pack(packed, first, blocks, rows, in);
    return true;
  }
  return false;
}

}  // namespace
}  // namespace rekindle

#define REKINDLE_EXPORT extern "C" __attribute__((visibility("default")))

REKINDLE_EXPORT void rekindle_pack_f32(float* packed, int64_t first, const float* weight, int64_t rows, int64_t in) {
  rekindle::pack_numbers(packed, first, weight, rows, in);
}

REKINDLE_EXPORT void rekindle_pack_bf16(uint16_t* packed, int64_t first, const uint16_t* weight, int64_t rows,
                                        int64_t in) {
  rekindle::pack_numbers(packed, first, weight, rows, in);
}

// These functions pack rows of whole blocks; for an unknown kind, they return false and write nothing.
REKINDLE_EXPORT bool rekindle_pack_blocks_f32(const char* kind, float* packed, int64_t first, const uint8_t* blocks,
                                              int64_t rows, int64_t in) {
  return rekindle::pack_kind(kind, packed, first, blocks, rows, in);
}

REKINDLE_EXPORT bool rekindle_pack_blocks_bf16(const char* kind, uint16_t* packed, int64_t first, const uint8_t* blocks,
                                               int64_t rows, int64_t in) {
  return rekindle::pack_kind(kind, packed, first, blocks, rows, in);
}

// These functions pack rows of codes with scales.
REKINDLE_EXPORT void rekindle_pack_codes_f32(const rekindle::Codes* codes, float* packed, int64_t first, int64_t rows) {
  rekindle::kernels()->pack_codes_f32(*codes, packed, first, rows);
}

REKINDLE_EXPORT void rekindle_pack_codes_bf16(const rekindle::Codes* codes, uint16_t* packed, int64_t first,
                                              int64_t rows) {
  rekindle::kernels()->pack_codes_bf16(*codes, packed, first, rows);
}
