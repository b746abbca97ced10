// The keys of a tile: where they lie in the pages, and how they are turned and fetched.
#pragma once

#include "products.h"

namespace {

using rekindle::Attention;
using rekindle::AttentionPart;
using rekindle::kSegment;

// What the parts of this computation share: rows are the query heads of a part, those of one query together.
struct Work {
  const Attention& all;
  const AttentionPart& part;
  int64_t group, rows, room, state;

  Work(const Attention& all, const AttentionPart& part)
      : all(all),
        part(part),
        group(all.heads / all.kv_heads),
        rows(part.queries * group),
        room(all.table_width * all.page_size),
        state(rekindle::attention_state(all.head_dim)) {}

  // Returns how many units a key has.
  template <typename Kind>
  int64_t units() const {
    return (all.head_dim + Kind::kDepth - 1) / Kind::kDepth;
  }

  // Returns where the query head of a row begins in q and in the result.
  int64_t place(int64_t row) const {
    return ((part.first_query + row / group) * all.heads + part.kv_head * group + row % group) * all.head_dim;
  }

  // Returns how far the values of a position are from its keys.
  int64_t to_values() const { return (all.sides - 1) * all.kv_heads * all.page_size * all.head_dim; }

  // Returns the score of the position that has no values, for the query head of a row.
  float sink(int64_t row) const {
    return all.sinks ? all.sinks[part.kv_head * group + row % group] : -__builtin_inff();
  }

  // Returns the positions that any of the queries sees.
  Span seen_by_all() const {
    const int64_t visible = part.position + part.queries, first = part.position + 1 - all.window;
    return {all.window > 0 && first > 0 ? first : 0, visible < room ? visible : room};
  }

  // Returns the positions whose tiles are computed: all that are seen, or those of one segment.
  Span positions() const {
    Span span = seen_by_all();
    if (part.states != nullptr) {
      const int64_t first = part.segment * kSegment;
      span = {span.begin > first ? span.begin : first, least(span.end, first + kSegment)};
    }
    return {span.begin / kTile * kTile, span.end};
  }

  // Returns which positions of the tile at `tile` the query of a row sees.
  Span seen(int64_t row, int64_t tile) const {
    const int64_t visible = part.position + row / group + 1;
    const int64_t first = all.window > 0 && visible > all.window ? visible - all.window : 0;
    const int64_t last = visible < room ? visible : room;
    return {first > tile ? first - tile : 0, last - tile < kTile ? last - tile : kTile};
  }
};

// What is computed next; null and no positions if nothing is known of it.
struct Next {
  const Work* work;
  Span positions;
};

// The keys and values of the tile that comes next, which are fetched into the second cache while this one is computed;
// the first has no room for them. Pages are too short for the processor to foresee them.
//
// They are fetched evenly, a third each while keys are turned, scores computed and values added: a processor leaves out
// what it is asked to fetch while as much as it can follow is on its way. (Measured: 0.85 of the time of one row at a
// context of 7,900, beside fetching keys during scores and values while values are added.)
template <typename Number>
class Ahead {
 public:
  // Takes the keys of the next tile; until then nothing is fetched.
  void take(const Number* const* keys, const Work& work) {
    count_ = work.all.sides * kTile;
    head_dim_ = work.all.head_dim;
    for (int64_t i = 0; i < count_; ++i) rows_[i] = keys[i % kTile] + (i < kTile ? 0 : work.to_values());
  }

  // Fetches what is due after so many more numbers of the keys, of the scores' products or of the values were used.
  void after(int64_t numbers) {
    for (due_ += 2 * numbers; row_ < count_ && due_ >= 3 * head_dim_; due_ -= 3 * head_dim_) {
      const Number* from = rows_[row_++];
      for (int64_t d = 0; d < head_dim_; d += 64 / sizeof(Number)) __builtin_prefetch(from + d, 0, 2);
    }
  }

 private:
  const Number* rows_[2 * kTile];
  int64_t count_ = 0, head_dim_ = 0, row_ = 0, due_ = 0;
};

// Loads pairs of bfloat16 numbers, each pair in one lane.
inline Vec load_pairs(const uint16_t* from, int64_t count) {
  Vec pairs = {};
  if (count == 2 * kLanes)
    std::memcpy(&pairs, from, sizeof pairs);
  else
    std::memcpy(&pairs, from, count * sizeof *from);
  return pairs;
}

// Finds the keys of a tile's positions up to `end`; page ids out of range become the nearest one.
template <typename Number>
void find_keys(const Work& work, int64_t tile, int64_t end, const Number** keys) {
  const Attention& all = work.all;
  const int64_t page = all.sides * all.kv_heads * all.page_size * all.head_dim;
  int64_t index = tile / all.page_size, offset = tile % all.page_size;
  for (int64_t i = 0; i < end; ++index, offset = 0) {
    int64_t id = work.part.table[index];
    id = id < 0 ? 0 : id < all.pool ? id : all.pool - 1;
    const Number* from =
        static_cast<const Number*>(all.pages) + id * page + (work.part.kv_head * all.page_size + offset) * all.head_dim;
    for (; i < end && offset < all.page_size; ++i, ++offset, from += all.head_dim) keys[i] = from;
  }
  for (int64_t i = end; i < kTile; ++i) keys[i] = keys[end - 1];
}

// Copies a square of keys into columns of a tile; its `left` first dimensions, if not all.
inline void turn_square(Widened<float>, const float* const* keys, int64_t d, int64_t left, float* to) {
  Vec square[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) square[i] = left < kLanes ? load_some(keys[i] + d, left) : load(keys[i] + d);
  transpose(square);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    if (i < left) store(to + i * kTile, square[i]);
}

// Loads a square of pairs of bfloat16 numbers, and turns it: pairs are moved together, which takes half the steps.
inline void turn_pairs(const uint16_t* const* keys, int64_t d, int64_t left, Vec* square) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) square[i] = load_pairs(keys[i] + d, left < 2 * kLanes ? left : 2 * kLanes);
  transpose(square);
}

inline void turn_square(Widened<uint16_t>, const uint16_t* const* keys, int64_t d, int64_t left, float* to) {
  Vec square[kLanes];
  turn_pairs(keys, d, left, square);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if (2 * i < left) store(to + 2 * i * kTile, (Vec)((Bits)square[i] << 16));
    if (2 * i + 1 < left) store(to + (2 * i + 1) * kTile, (Vec)((Bits)square[i] & 0xffff0000u));
  }
}

#if defined(__AVX512BF16__)
inline void turn_square(Paired, const uint16_t* const* keys, int64_t d, int64_t left, uint32_t* to) {
  Vec square[kLanes];
  turn_pairs(keys, d, left, square);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    if (2 * i < left) std::memcpy(to + i * kTile, square + i, sizeof(Vec));
}
#endif

// Copies keys into a tile of [units of head_dim][64].
template <typename Kind, typename Number = typename Kind::Number>
void turn_keys(const Number* const* keys, int64_t head_dim, int64_t end, typename Kind::Unit* turned,
               Ahead<Number>& ahead) {
  constexpr int64_t kSide = kLanes * sizeof(float) / sizeof(Number);
  for (int64_t position = 0; position < end; position += kLanes)
    for (int64_t d = 0; d < head_dim; d += kSide) {
      turn_square(Kind{}, keys + position, d, head_dim - d, turned + d / Kind::kDepth * kTile + position);
      ahead.after(kLanes * kSide);
    }
}

}  // namespace
