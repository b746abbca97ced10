// The kernels of one instruction set, but for those over quantized blocks (stored.cc). This file is compiled once per
// set, with REKINDLE_ISA as the set's name.
#include "adjust.h"
#include "attention.h"
#include "convolve.h"
#include "draw.h"
#include "gate.h"
#include "kernels.h"
#include "linear.h"
#include "mass.h"
#include "norm.h"
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

// In stored.cc.
void linear_stored_widened(const StoredLinear&, const LinearPart&);
void linear_stored_pairs(const StoredLinear&, const LinearPart&);
void linear_stored_apart(const StoredLinear&, const LinearPart&);

namespace {

// For numbers of bfloat16: by the instructions of the set, if it has any.
#if defined(__AVX512BF16__)
constexpr auto linear_bf16 = flushed_linear<Pairs>;
constexpr auto stored_bf16 = linear_stored_pairs;
constexpr auto attend_bf16 = flushed_attend<Paired>;
#else
constexpr auto linear_bf16 = linear<BFloat16>;
constexpr auto stored_bf16 = linear_stored_widened;
constexpr auto attend_bf16 = attend<Halved>;
#endif

constexpr Kernels kAll = {
    REKINDLE_QUOTED(REKINDLE_ISA),
    linear<Float32>,
    linear_bf16,
    stored_bf16,
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
    attend_bf16,
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
  if (apart_is_faster()) {
    some.linear_f32 = linear<FetchedFloat32>;
    some.linear_bf16 = flushed_linear<Apart<true>>;
    some.linear_stored = linear_stored_apart;
    some.attend_bf16 = flushed_attend<Swapped>;
  }
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
