// Products with panels of codes that are floats. They are multiplied as weights of float32 are, with the same sums: a
// few rows with numbers widened in registers, many rows with some inputs at a time widened into the first cache.
#pragma once

#include "integers.h"
#include "linear.h"
#include "stored.h"

namespace {

constexpr int64_t kWidened = 128;  // the most inputs widened at a time
static_assert(kBlock % kWidened == 0, "the inputs of a tile are one array");

// Loads 32 codes of E4M3 as a 256th of their numbers: as halves, whose conversion keeps the smallest numbers in threads
// that flush them to zero. Codes that are not numbers are 480 / 256.
inline void load_e4m3(const uint8_t* from, Vec (&to)[kParts]) {
#if defined(__AVX512BW__)
  const __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  const __m512i halves = _mm512_and_si512(_mm512_slli_epi16(wide, 7), _mm512_set1_epi16(static_cast<int16_t>(0xbf80)));
  // Without masks, GCC 12 warns about undefined values in its own header.
  to[0] = (Vec)_mm512_maskz_cvtph_ps(0xffff, _mm512_maskz_extracti64x4_epi64(0xff, halves, 0));
  to[1] = (Vec)_mm512_maskz_cvtph_ps(0xffff, _mm512_maskz_extracti64x4_epi64(0xff, halves, 1));
#elif defined(__F16C__) && !defined(__AVX512F__)
#pragma GCC unroll 2
  for (int p = 0; p < kParts; p += 2) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + p * kLanes)));
    const __m256i mask = _mm256_set1_epi16(static_cast<int16_t>(0xbf80));
    const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(wide, 7), mask);
    to[p] = (Vec)_mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    to[p + 1] = (Vec)_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
  }
#elif defined(__aarch64__)
#pragma GCC unroll 4
  for (int p = 0; p < kParts; p += 2) {
    const int16x8_t wide = vshll_n_s8(vld1_s8(reinterpret_cast<const int8_t*>(from + p * kLanes)), 7);
    const uint16x8_t halves = vandq_u16(vreinterpretq_u16_s16(wide), vdupq_n_u16(0xbf80));
    to[p] = (Vec)vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(halves)));
    to[p + 1] = (Vec)vcvt_high_f32_f16(vreinterpretq_f16_u16(halves));
  }
#else
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
  for (int p = 0; p < kParts; ++p) {
    Bytes bytes;
    std::memcpy(&bytes, from + p * kLanes, sizeof bytes);
    const Bits codes = __builtin_convertvector(bytes, Bits), size = codes & 127;
    const Vec small = __builtin_convertvector(size, Vec) * splat(0x1p-17f), normal = (Vec)((size << 20) + (112u << 23));
    to[p] = (Vec)((Bits)(size < 8 ? small : normal) | (codes & 128) << 24);
  }
#endif
}

// A place in a panel of codes of E4M3, with the scales of the current block times 256.
struct FloatCursor {
  static constexpr int kGroupBytes = rekindle::kGroup * kPanel;
  const uint8_t* at;
  int64_t groups, left;  // in a block, and in this one
  Vec scale[kParts];

  FloatCursor(const uint8_t* panel, int64_t groups) : at(panel), groups(groups), left(0), scale{} {}

  // Goes to a group of the panel, from its beginning.
  void seek(int64_t group) {
    const int64_t inside = group % groups;
    at += group / groups * (sizeof(float) + groups * rekindle::kGroup) * kPanel;
    if (inside == 0) return;
    enter();
    at += inside * rekindle::kGroup * kPanel;
    left -= inside - 1;
  }

  // Reads the scales before the first group of a block.
  void enter() {
    if (left-- > 0) return;
    left = groups - 1;
#pragma GCC unroll 8
    for (int p = 0; p < kParts; ++p, at += sizeof(Vec)) {
      std::memcpy(&scale[p], at, sizeof(Vec));
      scale[p] *= 256.0f;
    }
  }

  // Returns the numbers of an input of the group.
  void read(int i, Vec (&numbers)[kParts]) const {
    load_e4m3(at + i * kPanel, numbers);
#pragma GCC unroll 8
    for (int p = 0; p < kParts; ++p) numbers[p] *= scale[p];
  }

  void next() { at += kGroupBytes; }
};

// A place in a panel of codes of 4 bits in a table of floats, with the scales of the current block.
template <int kKind>
struct TableCursor {
  static constexpr int kGroupBytes = rekindle::group_bytes(rekindle::kStored[kKind]);
  const uint8_t* at;
  int64_t groups, left;  // in a block, and in this one
  Vec scale[kParts];

  TableCursor(const uint8_t* panel, int64_t groups) : at(panel), groups(groups), left(0), scale{} {}

  // Reads the scales before the first group of a block.
  void enter() {
    if (left-- > 0) return;
    left = groups - 1;
#pragma GCC unroll 8
    for (int p = 0; p < kParts; ++p, at += sizeof(Vec)) std::memcpy(&scale[p], at, sizeof(Vec));
  }

  // Returns the numbers of an input of the group.
  void read(int i, Vec (&numbers)[kParts]) const {
    const uint8_t* words = at + i / 4 % 4 * 4 * kPanel;
#pragma GCC unroll 8
    for (int p = 0; p < kParts; ++p) {
      const Bits codes = load_bits(words + p * kLanes * 4) >> (i / 16 * 4 + i % 4 * 8);
      numbers[p] = look_up_floats(rekindle::kStored[kKind].table, codes) * scale[p];
    }
  }

  void next() { at += kGroupBytes; }
};

// Writes the numbers of the next groups, [input][32 outputs].
template <typename Cursor>
void widen_groups(Cursor& cursor, int64_t groups, float* to) {
  for (int64_t group = 0; group < groups; ++group) {
    cursor.enter();
#pragma GCC unroll 4
    for (int i = 0; i < rekindle::kGroup; ++i, to += kPanel) {
      Vec numbers[kParts];
      cursor.read(i, numbers);
#pragma GCC unroll 8
      for (int p = 0; p < kParts; ++p) store(to + p * kLanes, numbers[p]);
    }
    cursor.next();
  }
}

// Multiplies a panel with the rows of one tile, [input][rows].
template <typename Cursor, int Rows>
void few_float_rows(const uint8_t* panel, int64_t of_block, const float* x, int64_t in, float* y) {
  Cursor cursor(panel, of_block);
  Vec sums[Rows][kParts] = {};
  for (int64_t begin = 0; begin < in; begin += rekindle::kGroup) {
    cursor.enter();
    for (int line = 0; line < Cursor::kGroupBytes; line += 64) __builtin_prefetch(cursor.at + 2048 + line);
#pragma GCC unroll 4
    for (int i = 0; i < rekindle::kGroup; ++i, x += Rows) {
      Vec numbers[kParts];
      cursor.read(i, numbers);
#pragma GCC unroll 16
      for (int row = 0; row < Rows; ++row) {
        const Vec input = splat(x[row]);
#pragma GCC unroll 8
        for (int p = 0; p < kParts; ++p) Float32::add(sums[row][p], numbers[p], input);
      }
    }
    cursor.next();
  }
#pragma GCC unroll 16
  for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 8
    for (int p = 0; p < kParts; ++p) store(y + row * kPanel + p * kLanes, sums[row][p]);
}

template <typename Cursor, int Rows = Float32::kWhole>
void few_float_rows_of(int64_t rows, const uint8_t* panel, int64_t of_block, const float* x, int64_t in, float* y) {
  if (rows == Rows) return few_float_rows<Cursor, Rows>(panel, of_block, x, in, y);
  if constexpr (Rows > 1) few_float_rows_of<Cursor, Rows - 1>(rows, panel, of_block, x, in, y);
}

template <int Rows = Float32::kTileRows>
void add_widened(int64_t rows, const Inputs<Float32>& inputs, const float* numbers, float* y) {
  if (rows == Rows) return tile<Float32, Rows>(inputs, numbers, y, kPanel);
  if constexpr (Rows > 1) add_widened<Rows - 1>(rows, inputs, numbers, y);
}

// Multiplies a panel with the rows of a part, interleaved in its scratch, into [rows][32]. `numbers` has room for
// `kWidened` inputs.
template <typename Cursor>
void float_panel(const uint8_t* panel, int64_t of_block, const Linear& all, const LinearPart& part, float* numbers,
                 float* y) {
  const Tiles<Float32> tiles{all, part};
  if (part.rows <= Float32::kWhole)
    return few_float_rows_of<Cursor>(part.rows, panel, of_block, tiles.inputs(0, 0), all.in, y);
  Cursor cursor(panel, of_block);
  for (int64_t begin = 0; begin < all.in; begin += kWidened) {
    const int64_t steps = least(kWidened, all.in - begin), block = begin / kBlock * kBlock;
    widen_groups(cursor, steps / rekindle::kGroup, numbers);
    // The tiles fetch the next codes meanwhile.
    const int64_t ahead = reinterpret_cast<const char*>(cursor.at) - reinterpret_cast<const char*>(numbers);
    const int64_t hop = kPanel / tiles.count;
    for (int64_t t = 0; t < tiles.count; ++t) {
      const auto* x = tiles.inputs(block, t) + (begin - block) * tiles.rows(t);
      add_widened(tiles.rows(t), {x, 0, begin, steps, ahead + t * steps * hop, hop}, numbers,
                  y + tiles.first(t) * kPanel);
    }
  }
}

// Multiplies a panel of a run with codes that are floats.
inline void float_panel_of(const rekindle::Run& run, const uint8_t* panel, const Linear& all, const LinearPart& part,
                           float* numbers, float* y) {
  using rekindle::kFloat8;
  if (run.kind == kFloat8) return float_panel<FloatCursor>(panel, run.groups, all, part, numbers, y);
  if (run.kind == kFloat8 + 1) return float_panel<TableCursor<kFloat8 + 1>>(panel, run.groups, all, part, numbers, y);
  float_panel<TableCursor<kFloat8 + 2>>(panel, run.groups, all, part, numbers, y);
}

}  // namespace
