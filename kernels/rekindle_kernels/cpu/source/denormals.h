// The mode of a thread for denormal numbers.
#pragma once

#include <immintrin.h>

namespace {

// Denormal numbers are zeros for its life, as in the sums of tiles and of VDPBF16PS. So sums by other instructions, and
// partial sums in memory, are no exception.
class NoDenormals {
 public:
  NoDenormals() { _mm_setcsr(before_ | 0x8040); }
  ~NoDenormals() { _mm_setcsr(before_); }
  NoDenormals(const NoDenormals&) = delete;

 private:
  const unsigned before_ = _mm_getcsr();
};

}  // namespace
