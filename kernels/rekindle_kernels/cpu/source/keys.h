// The keys of a tile: their places in the pages, transposition and prefetching.
#pragma once

#include "products.h"

namespace {

using rekindle::Attention;
using rekindle::AttentionPart;
using rekindle::kSegment;

// The context of a part's computation. Its rows are the query heads of the part, ordered by query.
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

  // Returns the offset of a row's query head in q and in the result.
  int64_t place(int64_t row) const {
    return ((part.first_query + row / group) * all.heads + part.kv_head * group + row % group) * all.head_dim;
  }

  // Returns the distance from the keys of a position to its values.
  int64_t to_values() const { return (all.sides - 1) * all.kv_heads * all.page_size * all.width; }

  // Returns the sink of a row's query head; minus infinity without sinks.
  float sink(int64_t row) const {
    return all.sinks ? all.sinks[part.kv_head * group + row % group] : -__builtin_inff();
  }

  // Returns the end of the positions visible to a query of the part.
  int64_t end(int64_t query) const { return part.until ? part.until[query] : part.position + query + 1; }

  // Returns the positions visible to any of the queries.
  Span seen_by_all() const {
    const int64_t visible = end(part.queries - 1), first = part.position + 1 - all.window;
    return {all.window > 0 && first > 0 ? first : 0, visible < room ? visible : room};
  }

  // Returns the positions to compute: all visible ones, or those of one segment.
  Span positions() const {
    Span span = seen_by_all();
    if (part.states != nullptr) {
      const int64_t first = part.segment * kSegment;
      span = {span.begin > first ? span.begin : first, least(span.end, first + kSegment)};
    }
    return {span.begin / kTile * kTile, span.end};
  }

  // Returns the positions of the tile at `tile` visible to a row's query.
  Span seen(int64_t row, int64_t tile) const {
    const int64_t own = part.position + row / group + 1, visible = end(row / group);
    const int64_t first = all.window > 0 && own > all.window ? own - all.window : 0;
    const int64_t last = visible < room ? visible : room;
    return {first > tile ? first - tile : 0, last - tile < kTile ? last - tile : kTile};
  }
};

// The next computation; null and no positions if unknown.
struct Next {
  const Work* work;
  Span positions;
};

// Prefetching of the next tile's keys and values into the second cache during the computation of this tile; the first
// cache has no room for them. Pages are too short for the processor's own prefetching.
//
// The fetches are spread evenly, a third each over transposition of keys, scores and values: a processor drops
// prefetches beyond its limit of pending ones. (Measured: 0.85 of the time of one row at a context of 7,900, compared
// to fetching keys during scores and values during values.)
template <typename Number>
class Ahead {
 public:
  // Sets the keys of the next tile; nothing is fetched before.
  void take(const Number* const* keys, const Work& work) {
    count_ = work.all.sides * kTile;
    head_dim_ = work.all.head_dim;
    for (int64_t i = 0; i < count_; ++i) rows_[i] = keys[i % kTile] + (i < kTile ? 0 : work.to_values());
  }

  // Fetches the share due after so many more numbers of keys, products of scores, or values.
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
  const int64_t page = all.sides * all.kv_heads * all.page_size * all.width;
  int64_t index = tile / all.page_size, offset = tile % all.page_size;
  for (int64_t i = 0; i < end; ++index, offset = 0) {
    int64_t id = work.part.table[index];
    id = id < 0 ? 0 : id < all.pool ? id : all.pool - 1;
    const Number* from =
        static_cast<const Number*>(all.pages) + id * page + (work.part.kv_head * all.page_size + offset) * all.width;
    for (; i < end && offset < all.page_size; ++i, ++offset, from += all.width) keys[i] = from;
  }
  for (int64_t i = end; i < kTile; ++i) keys[i] = keys[end - 1];
}

// Transposes a square of keys into columns of a tile; only the `left` first dimensions, if not all.
inline void transpose_square(Widened<float>, const float* const* keys, int64_t d, int64_t left, float* to) {
  Vec square[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) square[i] = left < kLanes ? load_some(keys[i] + d, left) : load(keys[i] + d);
  transpose(square);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    if (i < left) store(to + i * kTile, square[i]);
}

// Loads a square of pairs of bfloat16 numbers, and transposes it: moving whole pairs takes half the steps.
inline void transpose_pairs(const uint16_t* const* keys, int64_t d, int64_t left, Vec* square) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) square[i] = load_pairs(keys[i] + d, left < 2 * kLanes ? left : 2 * kLanes);
  transpose(square);
}

inline void transpose_square(Widened<uint16_t>, const uint16_t* const* keys, int64_t d, int64_t left, float* to) {
  Vec square[kLanes];
  transpose_pairs(keys, d, left, square);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if (2 * i < left) store(to + 2 * i * kTile, (Vec)((Bits)square[i] << 16));
    if (2 * i + 1 < left) store(to + (2 * i + 1) * kTile, (Vec)((Bits)square[i] & 0xffff0000u));
  }
}

// Moves four dimensions at once, and widens them to two pairs afterwards.
inline void transpose_square(Counted, const int8_t* const* keys, int64_t d, int64_t left, uint32_t* to) {
  Vec square[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    square[i] = Vec{};
    std::memcpy(square + i, keys[i] + d, left < 4 * kLanes ? left : sizeof(Vec));
  }
  transpose(square);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if (4 * i >= left) break;
    const Shorts first = ((Shorts)square[i] << 8) >> 8, second = (Shorts)square[i] >> 8;
    std::memcpy(to + 2 * i * kTile, &first, sizeof first);
    std::memcpy(to + (2 * i + 1) * kTile, &second, sizeof second);
  }
}

#if defined(__AVX512BF16__)
inline void transpose_square(Swapped, const uint16_t* const* keys, int64_t d, int64_t left, float* to) {
  Vec square[kLanes];
  transpose_pairs(keys, d, left, square);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if (2 * i >= left) break;
    store(to + Swapped::place(2 * i) * kTile, (Vec)((Bits)square[i] << 16));
    store(to + Swapped::place(2 * i + 1) * kTile, (Vec)((Bits)square[i] & 0xffff0000u));
  }
}

inline void transpose_square(Paired, const uint16_t* const* keys, int64_t d, int64_t left, uint32_t* to) {
  Vec square[kLanes];
  transpose_pairs(keys, d, left, square);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    if (2 * i < left) std::memcpy(to + i * kTile, square + i, sizeof(Vec));
}
#endif

// Transposes keys into a tile of [units of head_dim][64].
template <typename Kind, typename Number = typename Kind::Number>
void transpose_keys(const Number* const* keys, int64_t head_dim, int64_t end, typename Kind::Unit* transposed,
                    Ahead<Number>& ahead) {
  constexpr int64_t kSide = kLanes * sizeof(float) / sizeof(Number);
  for (int64_t position = 0; position < end; position += kLanes)
    for (int64_t d = 0; d < head_dim; d += kSide) {
      transpose_square(Kind{}, keys + position, d, head_dim - d, transposed + d / Kind::kDepth * kTile + position);
      ahead.after(kLanes * kSide);
    }
}

}  // namespace
