// bfloat16 with AVX-512: by VDPBF16PS, or by two FMAs of widened numbers with the same bits.
//
// VDPBF16PS is defined as two fused sums, of the second product of a pair and then of the first, with denormal numbers
// as zeros. Intel's cores compute it at half of the speed of the FMAs (Xeon of 2023: 95 and 190 GFLOP/s a core), AMD's
// at twice the speed.
#pragma once

#include <chrono>

#include "attention.h"
#include "denormals.h"
#include "linear.h"

namespace {

// Weights of float32, prefetched for one or two rows too. (A Xeon of Intel: 0.95 and 0.84 of the time.)
struct FetchedFloat32 : Float32 {
  static constexpr int64_t kSoon = 2048;
};

// Returns the seconds of some thousand additions to independent sums, by the fastest of some attempts.
template <typename Add>
double seconds_of(Add add) {
  constexpr int kSums = 24, kSteps = 400, kAttempts = 5;
  double fastest = 1;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Vec sums[kSums];
    for (int i = 0; i < kSums; ++i) sums[i] = splat(static_cast<float>(i));
    asm volatile("" : : "r"(sums) : "memory");  // the sums are in memory here, and below
    const auto begin = std::chrono::steady_clock::now();
    for (int step = 0; step < kSteps; ++step)
#pragma GCC unroll 24
      for (int i = 0; i < kSums; ++i) add(sums[i]);
    asm volatile("" : : "r"(sums) : "memory");
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    fastest = taken.count() < fastest ? taken.count() : fastest;
  }
  return fastest;
}

// Returns whether this CPU is faster with two FMAs than with VDPBF16PS. Both have the same bits, so a wrong answer of a
// busy machine costs only time.
inline bool apart_is_faster() {
  const Vec a = splat(1.0f), b = splat(0.5f);
  const double apart = seconds_of([=](Vec& sum) { sum = fused(a, b, fused(b, a, sum)); });
  const double pairs = seconds_of([=](Vec& sum) { Pairs::add(sum, (__m512bh)a, (__m512bh)b); });
  return pairs > 1.25 * apart;
}

template <typename Kind>
void flushed_linear(const Linear& all, const LinearPart& part) {
  const NoDenormals mode;
  linear<Kind>(all, part);
}

// Attention by `Kind` for whole tiles of rows. For fewer, widening keys takes more time than it saves, and for a part
// of a vector of values, their loads do.
template <typename Kind>
void flushed_attend(const Attention& all, const AttentionPart& part) {
  const NoDenormals mode;
  if (part.queries * (all.heads / all.kv_heads) >= kTogether && all.head_dim % kLanes == 0)
    attend<Kind>(all, part);
  else
    attend<Paired>(all, part);
}

}  // namespace
