// Vectors of floats, with the width of the instruction set of this compilation.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Bits __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

inline Vec splat(float x) { return x - Vec{}; }

inline Vec load(const float* from) {
  Vec x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline void store(float* to, Vec x) { std::memcpy(to, &x, sizeof x); }

// Loads the first `count` numbers; the other lanes are 0.
inline Vec load_first(const float* from, int64_t count) {
  Vec x{};
  std::memcpy(&x, from, count * sizeof(float));
  return x;
}

inline void store_first(float* to, Vec x, int64_t count) { std::memcpy(to, &x, count * sizeof(float)); }

// Returns a * b + c, rounded once: for sums that different loops must round alike. (Elsewhere the compiler chooses.)
inline Vec fused(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

// Loads bfloat16 numbers, the upper halves of floats. (For a generic vector conversion, GCC 12 emits six instructions
// with AVX2, and no vector instructions with NEON.)
inline Vec load(const uint16_t* from) {
#if defined(__AVX512F__)
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  // Without a mask, GCC 12 warns about undefined values in its own header.
  const Bits wide = (Bits)_mm512_maskz_cvtepu16_epi32(0xffff, halves);
#elif defined(__AVX2__)
  const Bits wide = (Bits)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif defined(__aarch64__)
  const Bits wide = (Bits)vmovl_u16(vld1_u16(from));
#else
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  const Bits wide = __builtin_convertvector(halves, Bits);
#endif
  return (Vec)(wide << 16);
}

inline float widen(uint16_t half) {
  const uint32_t bits = uint32_t{half} << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// Rounds to the nearest bfloat16, ties to even; NaN stays NaN.
inline uint16_t narrow(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (x != x) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Returns zeros in place of denormal numbers, with their signs.
inline Vec flushed(Vec x) {
  return (Vec)((Bits)x & (((Bits)x & 0x7f800000u) != 0 ? Bits{} - 1 : Bits{} + 0x80000000u));
}

inline float flushed(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x; }

inline Bits narrow(Vec x) {
  const Bits bits = (Bits)x, quiet = (bits >> 16) | 0x40;
  const Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return x == x ? rounded : quiet;
}

}  // namespace
