// The natural logarithm, by the polynomial of the Cephes library (S. L. Moshier, 1992).
#pragma once

#include "vector.h"

namespace {

typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));

// Returns the logarithm of a normal number to about the last bit.
//
// `from_one` is x - 1. Near 1 it may be more exact than x, and so is the result.
inline Vec logarithm(Vec x, Vec from_one) {
  const Bits root = 0x3f3504f3u - Bits{};  // of one half
  const Bits exponent = (Bits)((Ints)((Bits)x - root) >> 23);
  const Vec e = __builtin_convertvector((Ints)exponent, Vec);
  const Vec mantissa = (Vec)((Bits)x - (exponent << 23));  // from the root of 1/2 to that of 2
  const Vec f = e == Vec{} ? from_one : mantissa - splat(1.0f);
  const Vec square = f * f;
  Vec y = splat(7.0376836292e-2f) * f - splat(1.1514610310e-1f);
  y = y * f + splat(1.1676998740e-1f);
  y = y * f - splat(1.2420140846e-1f);
  y = y * f + splat(1.4249322787e-1f);
  y = y * f - splat(1.6668057665e-1f);
  y = y * f + splat(2.0000714765e-1f);
  y = y * f - splat(2.4999993993e-1f);
  y = y * f + splat(3.3333331174e-1f);
  y = y * f * square + e * splat(-2.12194440e-4f);
  y = y - splat(0.5f) * square;
  return (f + y) + e * splat(0.693359375f);
}

}  // namespace
