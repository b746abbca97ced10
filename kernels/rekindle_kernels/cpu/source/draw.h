// The best token of each row: the likeliest, or the sampled one.
#pragma once

#include "kernels.h"
#include "logarithm.h"
#include "rows.h"
#include "shuffle.h"
#include "vector.h"

namespace {

inline Bits mixed(Bits words) {
  words = (words ^ (words >> 16)) * 0x21f0aaadu;
  words = (words ^ (words >> 15)) * 0xd35a2d97u;
  return words ^ (words >> 15);
}

// Maps uniform words to Gumbel noise, like `to_gumbel` in noise.py.
inline Vec gumbel(Bits words) {
  const Vec below_one = splat(0x1.fffffep-1f);
  const Vec middle = (__builtin_convertvector(words, Vec) + splat(0.5f)) * splat(0x1p-32f);
  const Vec uniform = middle < below_one ? middle : below_one;
  const Vec exponential = -logarithm(splat(1.0f) - uniform, -uniform);
  return -logarithm(exponential, exponential - splat(1.0f));
}

// Returns a vector of `numbers` from `row` on, repeated if they are fewer than the lanes.
template <typename Vector, typename Number>
inline Vector lanes_of(const Number* numbers, int64_t row, int64_t rows) {
  Vector lanes{};
  for (int lane = 0; lane < kLanes; ++lane) {
    const int64_t at = rows < kLanes ? lane % rows : row + lane;
    if (at < rows) lanes[lane] = numbers[at];
  }
  return lanes;
}

// Writes the best token of each row, given the best of each lane; the first of equal ones.
inline void choose(Vec top, Bits place, int64_t row, int64_t rows, float* scores, int32_t* places) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const int64_t of = rows < kLanes ? lane % rows : row + lane;
    const int32_t where = static_cast<int32_t>(place[lane]);
    if (of >= rows || !(top[lane] > scores[of] || (top[lane] == scores[of] && where < places[of]))) continue;
    scores[of] = top[lane];
    places[of] = where;
  }
}

// A vector holds one token of many rows, or for few rows, as many whole tokens as fit.
void draw(const rekindle::Draw& all, int64_t first, int64_t tokens, float* scores, int32_t* places) {
  const Vec nothing = splat(-__builtin_inff());
  const int64_t rows = all.rows, together = rows < kLanes ? kLanes / rows : 1, end = first + tokens;
  for (int64_t row = 0; row < rows; ++row) {
    scores[row] = nothing[0];
    places[row] = 0;
  }
  for (int64_t row = 0; row < rows; row += kLanes) {
    const Bits first_key = lanes_of<Bits>(all.first, row, rows), second_key = lanes_of<Bits>(all.second, row, rows);
    const Vec top_number = lanes_of<Vec>(all.largest, row, rows), bound = lanes_of<Vec>(all.least, row, rows);
    const Vec scale = splat(1.0f) / lanes_of<Vec>(all.temperature, row, rows);
    Bits token{};
    for (int lane = 0; lane < kLanes; ++lane)  // lanes without a whole token are far past the end
      token[lane] = first + (rows >= kLanes ? 0 : lane < together * rows ? lane / rows : 1u << 31);
    Vec top = nothing;
    Bits place{};
    for (int64_t at = first; at < end; at += together, token += static_cast<uint32_t>(together) - Bits{}) {
      const Vec number = load_rows(all.x + at * rows + row, (all.tokens - at) * rows - row);
      const Bits kept = (Bits)(number >= bound) & (Bits)(token < static_cast<uint32_t>(end) - Bits{});
      if (largest((Vec)(kept & (Bits)splat(1.0f))) == 0.0f) continue;
      const Vec noise = gumbel(mixed(mixed(token ^ first_key) ^ second_key));
      const Vec score = noise - (top_number - number) * scale;
      const Bits better = (Bits)(score > top) & kept;
      top = (Ints)better ? score : top;
      place = (Ints)better ? token : place;
    }
    choose(top, place, row, rows, scores, places);
  }
}

// Finds the largest number of each block of a single row.
inline void maxima_of_row(const float* x, int64_t tokens, int64_t first, int64_t blocks, float* maxima) {
  for (int64_t block = first; block < first + blocks; ++block) {
    Vec top = splat(-__builtin_inff());
    Bits odd = {};
    const int64_t begin = block * rekindle::kBlock, end = least(begin + rekindle::kBlock, tokens);
    for (int64_t token = begin; token < end; token += kLanes) {
      const Vec number = load_rows(x + token, tokens - token);
      odd |= (Bits)(number != number);
      top = larger(kCount < static_cast<uint32_t>(end - token) - Bits{} ? number : top, top);
    }
    maxima[block] = largest(odd ? splat(__builtin_inff()) : top);
  }
}

void maxima(const float* x, int64_t tokens, int64_t rows, int64_t first, int64_t blocks, float* maxima) {
  if (rows == 1) return maxima_of_row(x, tokens, first, blocks, maxima);
  for (int64_t block = first; block < first + blocks; ++block) {
    const int64_t begin = block * rekindle::kBlock, end = least(begin + rekindle::kBlock, tokens);
    for (int64_t row = 0; row < rows; row += kLanes) {
      Vec top = splat(-__builtin_inff());
      Bits odd = {};
      for (int64_t token = begin; token < end; ++token) {
        const Vec numbers = load_rows(x + token * rows + row, (tokens - token) * rows - row);
        odd |= (Bits)(numbers != numbers);
        top = larger(numbers, top);
      }
      top = odd ? splat(__builtin_inff()) : top;
      std::memcpy(maxima + block * rows + row, &top, least(rows - row, kLanes) * sizeof(float));
    }
  }
}

}  // namespace
