// Writes weights in the form in which the linear layers read them. Python calls this, in threads.
#include "blocks.h"
#include "kernels.h"

namespace rekindle {
namespace {

inline void store(float number, float* to) { *to = number; }
inline void store(uint16_t number, uint16_t* to) { *to = number; }

// Rounds to the nearest bfloat16, ties to even; NaN stays NaN.
inline void store(float number, uint16_t* to) {
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  *to = number != number ? bits >> 16 | 64 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// Writes rows of a weight into panels of 32 rows; `kDepth` numbers of a row lie together.
//
// `read(row, begin)` returns where the numbers of a row are from an input on, `kTogether` of them: as many as leave the
// panel's lines in the first cache.
template <int kTogether, int kDepth, typename Number, typename Read>
void pack(Number* packed, int64_t first, int64_t rows, int64_t in, const Read& read) {
  const int64_t steps = (in + kDepth - 1) / kDepth, size = steps * kDepth * kPanel;
  for (int64_t done = 0; done < rows;) {
    const int64_t lane = (first + done) % kPanel, lanes = kPanel - lane < rows - done ? kPanel - lane : rows - done;
    Number* panel = packed + (first + done) / kPanel * size + lane * kDepth;
    for (int64_t begin = 0; begin < in; begin += kTogether) {
      const int64_t count = kTogether < in - begin ? kTogether : in - begin;
      for (int64_t l = 0; l < lanes; ++l) {
        const auto* numbers = read(done + l, begin);
        for (int64_t i = 0; i < count; ++i) {
          store(numbers[i], panel + ((begin + i) / kDepth * kPanel + l) * kDepth + (begin + i) % kDepth);
        }
      }
    }
    done += lanes;
  }
}

template <int kDepth, typename Number>
void pack_numbers(Number* packed, int64_t first, const Number* weight, int64_t rows, int64_t in) {
  pack<64, kDepth>(packed, first, rows, in, [=](int64_t row, int64_t begin) { return weight + row * in + begin; });
}

template <typename Kind, int kDepth, typename Number>
void pack_blocks(Number* packed, int64_t first, const uint8_t* blocks, int64_t rows, int64_t in) {
  float numbers[Kind::kNumbers];
  pack<Kind::kNumbers, kDepth>(packed, first, rows, in, [&](int64_t row, int64_t begin) {
    Kind::read(blocks + (row * in + begin) / Kind::kNumbers * Kind::kBytes, numbers);
    return static_cast<const float*>(numbers);
  });
}

// Reads blocks of the kind that has this name in ggml; returns false if there is none.
template <int kDepth, typename Number>
bool pack_kind(const char* name, Number* packed, int64_t first, const uint8_t* blocks, int64_t rows, int64_t in) {
  const struct {
    const char* name;
    void (*pack)(Number*, int64_t, const uint8_t*, int64_t, int64_t);
  } kinds[] = {{"Q4_0", pack_blocks<Q4_0, kDepth>}, {"Q4_1", pack_blocks<Q4_1, kDepth>},
               {"Q8_0", pack_blocks<Q8_0, kDepth>}, {"Q4_K", pack_blocks<Q4_K, kDepth>},
               {"Q5_K", pack_blocks<Q5_K, kDepth>}, {"Q6_K", pack_blocks<Q6_K, kDepth>}};
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
  rekindle::pack_numbers<1>(packed, first, weight, rows, in);
}

REKINDLE_EXPORT void rekindle_pack_bf16(uint16_t* packed, int64_t first, const uint16_t* weight, int64_t rows,
                                        int64_t in) {
  rekindle::pack_numbers<2>(packed, first, weight, rows, in);
}

// These pack rows of whole blocks, and return false, with nothing done, for a kind that they do not know.
REKINDLE_EXPORT bool rekindle_pack_blocks_f32(const char* kind, float* packed, int64_t first, const uint8_t* blocks,
                                              int64_t rows, int64_t in) {
  return rekindle::pack_kind<1>(kind, packed, first, blocks, rows, in);
}

REKINDLE_EXPORT bool rekindle_pack_blocks_bf16(const char* kind, uint16_t* packed, int64_t first, const uint8_t* blocks,
                                               int64_t rows, int64_t in) {
  return rekindle::pack_kind<2>(kind, packed, first, blocks, rows, in);
}
