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

#define REKINDLE_TEXT(name) #name
#define REKINDLE_QUOTED(name) REKINDLE_TEXT(name)

namespace rekindle {
namespace REKINDLE_ISA {

// In codes.cc, compiled without fused operations.
void pack_codes_f32(const Codes&, float*, int64_t, int64_t);
void pack_codes_bf16(const Codes&, uint16_t*, int64_t, int64_t);

extern const Kernels kernels;
const Kernels kernels = {
    REKINDLE_QUOTED(REKINDLE_ISA),
    linear<Float32>,
    linear<BFloat16>,
    linear_stored,
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

}  // namespace REKINDLE_ISA
}  // namespace rekindle
