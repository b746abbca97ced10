// The linear layer over quantized blocks, of one instruction set. It takes most of the time of compiling a set, so it
// is compiled beside the other kernels, with REKINDLE_ISA as the set's name.
#include "kernels.h"
#include "quantized.h"

#if defined(__AVX512BF16__)
#include "apart.h"
#endif

namespace rekindle {
namespace REKINDLE_ISA {

#if defined(__AVX512BF16__)

namespace {

// Inputs of bfloat16 alone are multiplied by `Kind`.
template <typename Kind>
void flushed(const StoredLinear& stored, const LinearPart& part) {
  if (stored.most >= 0) return linear_stored<Kind>(stored, part);
  const NoDenormals mode;
  linear_stored<Kind>(stored, part);
}

}  // namespace

void linear_stored_pairs(const StoredLinear& stored, const LinearPart& part) { flushed<Pairs>(stored, part); }

void linear_stored_apart(const StoredLinear& stored, const LinearPart& part) { flushed<Apart<true>>(stored, part); }

#else

void linear_stored_widened(const StoredLinear& stored, const LinearPart& part) {
  linear_stored<BFloat16>(stored, part);
}

#endif

}  // namespace REKINDLE_ISA
}  // namespace rekindle
