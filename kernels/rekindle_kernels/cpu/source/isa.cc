// All kernels of one instruction set. This file is compiled once per set, with REKINDLE_ISA as the set's name.
#include "adjust.h"
#include "attention.h"
#include "convolve.h"
#include "draw.h"
#include "gate.h"
#include "kernels.h"
#include "linear.h"
#include "mass.h"
#include "norm.h"
#include "quantized.h"
#include "recur.h"
#include "rotary.h"
#include "scaled.h"

#if defined(__AVX512BF16__)
#include "apart.h"
#endif

#define REKINDLE_TEXT(name) #name
#define REKINDLE_QUOTED(name) REKINDLE_TEXT(name)

namespace rekindle {
namespace REKINDLE_ISA {

// In codes.cc, compiled without fused operations.
void pack_codes_f32(const Codes&, float*, int64_t, int64_t);
void pack_codes_bf16(const Codes&, uint16_t*, int64_t, int64_t);

namespace {

constexpr Kernels kAll = {
    REKINDLE_QUOTED(REKINDLE_ISA),
    linear<Float32>,
    linear<BFloat16>,
    linear_stored<BFloat16>,
    norm,
    rotate,
    gate,
    convolve,
    recur,
    mass,
    draw,
    maxima,
    adjust,
    attend<Widened<float>>,
    attend<Halved>,
    attend<Counted>,
    combine,
    quantize,
    pack_codes_f32,
    pack_codes_bf16,
};

#if defined(__AVX512BF16__)

// Returns the kernels with the instructions for bfloat16 that are the fastest here.
Kernels fastest() {
  Kernels some = kAll;
  const bool apart = apart_is_faster();
  if (apart) some.linear_f32 = linear<FetchedFloat32>;
  some.linear_bf16 = apart ? flushed_linear<Apart<true>> : flushed_linear<Pairs>;
  some.linear_stored = apart ? flushed_stored<Apart<true>> : flushed_stored<Pairs>;
  some.attend_bf16 = apart ? flushed_attend<Swapped> : flushed_attend<Paired>;
  return some;
}

#else

Kernels fastest() { return kAll; }

#endif

}  // namespace

// Returns the kernels of this set.
const Kernels* kernels() {
  static const Kernels all = fastest();
  return &all;
}

}  // namespace REKINDLE_ISA
}  // namespace rekindle
