// Writes weights in the form in which the linear layers read them. Python calls this, in threads.
#include "kernels.h"

namespace rekindle {
namespace {

// Writes rows of a weight into panels of 32 rows; `depth` numbers of a row lie together.
template <typename Number, int kDepth>
void pack(Number* packed, int64_t first, const Number* weight, int64_t rows, int64_t in) {
  const int64_t steps = (in + kDepth - 1) / kDepth, size = steps * kDepth * kPanel;
  constexpr int64_t kTogether = 64;  // inputs at a time, so that the panel's lines stay in the first cache
  for (int64_t done = 0; done < rows;) {
    const int64_t lane = (first + done) % kPanel, lanes = kPanel - lane < rows - done ? kPanel - lane : rows - done;
    Number* panel = packed + (first + done) / kPanel * size + lane * kDepth;
    for (int64_t begin = 0; begin < in; begin += kTogether) {
      const int64_t end = begin + kTogether < in ? begin + kTogether : in;
      for (int64_t l = 0; l < lanes; ++l) {
        const Number* row = weight + (done + l) * in;
        for (int64_t i = begin; i < end; ++i) panel[(i / kDepth * kPanel + l) * kDepth + i % kDepth] = row[i];
      }
    }
    done += lanes;
  }
}

}  // namespace
}  // namespace rekindle

#define REKINDLE_EXPORT extern "C" __attribute__((visibility("default")))

REKINDLE_EXPORT void rekindle_pack_f32(float* packed, int64_t first, const float* weight, int64_t rows, int64_t in) {
  rekindle::pack<float, 1>(packed, first, weight, rows, in);
}

REKINDLE_EXPORT void rekindle_pack_bf16(uint16_t* packed, int64_t first, const uint16_t* weight, int64_t rows,
                                        int64_t in) {
  rekindle::pack<uint16_t, 2>(packed, first, weight, rows, in);
}
