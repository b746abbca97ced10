// Vectors of integers, for products of quantized numbers.
#pragma once

#include "vector.h"

namespace {

typedef int32_t Signed __attribute__((vector_size(kLanes * 4)));
typedef int16_t Shorts __attribute__((vector_size(kLanes * 4)));

inline Bits load_bits(const void* from) {
  Bits x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline Bits spread_bits(uint32_t x) { return x - Bits{}; }

// Adds the products of pairs of 16-bit integers to each lane.
inline Signed add_pairs(Signed sum, Bits a, Bits b) {
#if defined(__AVX512VNNI__)
  return (Signed)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
  return sum + (Signed)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__) && !defined(__AVX512F__)
  return sum + (Signed)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__aarch64__)
  const int16x8_t x = (int16x8_t)a, y = (int16x8_t)b;
  return sum + (Signed)vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
#else
  return sum + ((Signed)(a << 16) >> 16) * ((Signed)(b << 16) >> 16) + ((Signed)a >> 16) * ((Signed)b >> 16);
#endif
}

// Whether `add_quads` takes codes of 8 bits with 128 added.
#if defined(__AVX512VNNI__)
constexpr bool kBiasedBytes = true;
#else
constexpr bool kBiasedBytes = false;
#endif

// Adds the products of four bytes to each lane. The codes are from 0 to 127, or of 8 bits if `kWide`.
template <bool kWide>
inline Signed add_quads(Signed sum, Bits codes, Bits x) {
#if defined(__AVX512VNNI__)
  return (Signed)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes, (__m512i)x);
#elif defined(__AVX512BW__)
  // Of codes from -128 to 127, a sum of two products has 16 bits.
  __m512i sizes = (__m512i)codes, turned = (__m512i)x;
  if constexpr (kWide) {
    turned = _mm512_mask_sub_epi8(turned, _mm512_movepi8_mask(sizes), _mm512_setzero_si512(), turned);
    sizes = _mm512_abs_epi8(sizes);
  }
  return sum + (Signed)_mm512_madd_epi16(_mm512_maddubs_epi16(sizes, turned), _mm512_set1_epi16(1));
#elif defined(__AVX2__) && !defined(__AVX512F__)
  __m256i sizes = (__m256i)codes, turned = (__m256i)x;
  if constexpr (kWide) {
    turned = _mm256_sign_epi8(turned, sizes);
    sizes = _mm256_abs_epi8(sizes);
  }
  return sum + (Signed)_mm256_madd_epi16(_mm256_maddubs_epi16(sizes, turned), _mm256_set1_epi16(1));
#elif defined(__aarch64__)
  const int8x16_t a = (int8x16_t)codes, b = (int8x16_t)x;
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
  return sum + (Signed)vpaddq_s32(low, vpaddlq_s16(vmull_high_s8(a, b)));
#else
  for (int byte = 0; byte < 4; ++byte)
    sum += ((Signed)(codes << (24 - 8 * byte)) >> 24) * ((Signed)(x << (24 - 8 * byte)) >> 24);
  return sum;
#endif
}

// Returns the entries of a table of 16 bytes by the low halves of bytes, whose high halves are 0.
inline Bits look_up_bytes(const uint8_t* table, Bits halves) {
#if defined(__AVX512BW__)
  // Without the mask, GCC 12 warns about undefined values in its own header.
  const __m128i once = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  const __m512i entries = _mm512_maskz_broadcast_i32x4(0xffff, once);
  return (Bits)_mm512_shuffle_epi8(entries, (__m512i)halves);
#elif defined(__AVX2__) && !defined(__AVX512F__)
  const __m256i entries = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return (Bits)_mm256_shuffle_epi8(entries, (__m256i)halves);
#elif defined(__aarch64__)
  return (Bits)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)halves);
#else
  uint8_t bytes[sizeof halves];
  std::memcpy(bytes, &halves, sizeof bytes);
  for (uint8_t& byte : bytes) byte = table[byte];
  return load_bits(bytes);
#endif
}

// Returns the entries of a table of 16 floats by the low four bits of each lane.
inline Vec look_up_floats(const float* table, Bits codes) {
#if defined(__AVX512BW__)
  return (Vec)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)codes, _mm512_loadu_ps(table));
#elif defined(__AVX2__) && !defined(__AVX512F__)
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), (__m256i)codes);
  const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), (__m256i)codes);
  return (Vec)_mm256_blendv_ps(low, high, (__m256)(codes << 28));
#else
  Vec numbers;
  for (int lane = 0; lane < kLanes; ++lane) numbers[lane] = table[codes[lane] & 15];
  return numbers;
#endif
}

// Loads float16 numbers, which must be finite.
inline Vec load_halves(const uint8_t* from) {
#if defined(__AVX512BW__)
  return (Vec)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__F16C__) && !defined(__AVX512F__)
  return (Vec)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif defined(__aarch64__)
  return (Vec)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from)));
#else
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  const Bits wide = __builtin_convertvector(halves, Bits);
  const Vec size = (Vec)((wide & 0x7fff) << 13) * splat(0x1p112f);
  return (Vec)((Bits)size | (wide & 0x8000) << 16);
#endif
}

// Loads bytes as floats.
template <typename Byte>
inline Vec load_small(const uint8_t* from) {
  [[maybe_unused]] constexpr bool kSigned = Byte(-1) < 0;
#if defined(__AVX512BW__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  const __m512i wide = kSigned ? _mm512_maskz_cvtepi8_epi32(0xffff, bytes) : _mm512_maskz_cvtepu8_epi32(0xffff, bytes);
  return __builtin_convertvector((Signed)wide, Vec);
#elif defined(__AVX2__) && !defined(__AVX512F__)
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return __builtin_convertvector((Signed)(kSigned ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes)), Vec);
#else
  typedef Byte Bytes __attribute__((vector_size(kLanes)));
  Bytes bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return __builtin_convertvector(bytes, Vec);
#endif
}

}  // namespace
