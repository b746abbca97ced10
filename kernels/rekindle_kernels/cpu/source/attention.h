// Paged attention: an online softmax over tiles of positions, which are read where they lie in the pages.
#pragma once

#include "kernels.h"
#include "shuffle.h"
#include "softmax.h"
#include "vector.h"

namespace {

using rekindle::Attention;
using rekindle::AttentionPart;
using rekindle::kSegment;
using rekindle::kTile;

constexpr int kTogether = 6;  // rows of a product in registers

// How many vectors of a product's row are in registers. Fewer rows leave room for more, and each sum waits for the one
// before it, so that a few alone would keep the processor waiting.
constexpr int across(int rows) { return kLanes != 8 ? 4 : rows == 1 ? 8 : rows <= 3 ? 4 : 2; }

// Positions of one tile: [begin, end) counts from the tile's first position.
struct Span {
  int64_t begin, end;

  bool empty() const { return begin >= end; }
};

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

  // Returns which positions of the tile at `tile` the query of a row sees.
  Span seen(int64_t row, int64_t tile) const {
    const int64_t visible = part.position + row / group + 1;
    const int64_t first = all.window > 0 && visible > all.window ? visible - all.window : 0;
    const int64_t last = visible < room ? visible : room;
    return {first > tile ? first - tile : 0, last - tile < kTile ? last - tile : kTile};
  }
};

// Loads a few numbers; the other lanes are 0.
template <typename Number>
inline Vec load_some(const Number* from, int64_t count) {
  Number numbers[kLanes] = {};
  std::memcpy(numbers, from, count * sizeof(Number));
  return load(numbers);
}

// Loads pairs of bfloat16 numbers, each pair in one lane.
inline Vec load_pairs(const uint16_t* from, int64_t count) {
  Vec pairs = {};
  if (count == 2 * kLanes)
    std::memcpy(&pairs, from, sizeof pairs);
  else
    std::memcpy(&pairs, from, count * sizeof *from);
  return pairs;
}

// How products are made of numbers that are widened to float32.
template <typename Stored>
struct Widened {
  using Number = Stored;
  using Unit = float;  // of what is multiplied at once
  using Units = Vec;
  static constexpr int kDepth = 1;  // numbers in a unit

  static Unit unit(const float* x, int64_t) { return *x; }

  static Units units(const Unit* from) { return load(from); }

  static Units spread(const float* unit) { return splat(*unit); }

  static void add(Vec& sum, Units a, Units b) { sum += a * b; }

  static void round(float*) {}

  // A few vectors of the values of a position, or `some` numbers of one.
  template <int Across>
  struct Values {
    const Number* from;
    int64_t some;

    Values(const Number* const* keys, int64_t to_values, Span, int64_t some) : from(*keys + to_values), some(some) {}

    Units operator()(int i) const { return some ? load_some(from, some) : load(from + i * kLanes); }
  };
};

#if defined(__AVX512BF16__)

// How products are made of pairs of bfloat16 numbers, twice as fast. Queries and weights are rounded to bfloat16 too.
struct Paired {
  using Number = uint16_t;
  using Unit = uint32_t;
  using Units = __m512bh;
  static constexpr int kDepth = 2;

  static Unit unit(const float* x, int64_t left) {
    return uint32_t{narrow(x[0])} | (left > 1 ? uint32_t{narrow(x[1])} << 16 : 0u);
  }

  static Units units(const Unit* from) { return (Units)_mm512_loadu_si512(from); }

  static Units spread(const float* unit) {
    int pair;
    std::memcpy(&pair, unit, sizeof pair);
    return (Units)_mm512_set1_epi32(pair);
  }

  static void add(Vec& sum, Units a, Units b) { sum = (Vec)_mm512_dpbf16_ps((__m512)sum, a, b); }

  // Rounds the weights of a tile where they are, so that the pairs lie side by side.
  static void round(float* weights) {
    for (int64_t i = 0; i < kTile; i += 2 * kLanes) {
      const Units pairs = _mm512_cvtne2ps_pbh((__m512)load(weights + i + kLanes), (__m512)load(weights + i));
      std::memcpy(weights + i / 2, &pairs, sizeof pairs);
    }
  }

  // A few vectors of the paired values of two positions. One that is not among the `seen` counts as 0, as it may be no
  // number.
  template <int Across>
  struct Values {
    Units pairs[Across];

    Values(const Number* const* keys, int64_t to_values, Span seen, int64_t some) {
      static constexpr Number kNone[4 * kLanes] = {};
      const Number* first = seen.begin <= 0 && seen.end > 0 ? keys[0] + to_values : kNone;
      const Number* second = seen.begin <= 1 && seen.end > 1 ? keys[1] + to_values : kNone;
      if constexpr (Across == 4) {
        for (int i = 0; i < Across; i += 2) {
          const __m512i a = _mm512_loadu_si512(first + i * kLanes), b = _mm512_loadu_si512(second + i * kLanes);
          pairs[i] = (Units)_mm512_permutex2var_epi16(a, interleaving(0), b);
          pairs[i + 1] = (Units)_mm512_permutex2var_epi16(a, interleaving(16), b);
        }
      } else {
        Halves a{}, b{};
        std::memcpy(&a, first, (some ? some : kLanes) * sizeof(Number));
        std::memcpy(&b, second, (some ? some : kLanes) * sizeof(Number));
        pairs[0] = (Units)(__builtin_convertvector(a, Bits) | __builtin_convertvector(b, Bits) << 16);
      }
    }

    Units operator()(int i) const { return pairs[i]; }
  };

 private:
  // Returns the places of the numbers from `first` on of two vectors, one from each in turn.
  static __m512i interleaving(uint32_t first) { return (__m512i)((kCount + first) * 0x10001u + 0x200000u); }
};

using Halved = Paired;

#else

using Halved = Widened<uint16_t>;

#endif

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

constexpr int kStepsAhead = 4;  // steps of a loop after which it is asked what is due

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

// A tile of positions of one head.
template <typename Kind>
struct Tile {
  const typename Kind::Number* const* keys;
  const typename Kind::Unit* turned;    // the keys as [units of head_dim][64]
  int64_t begin, end;                   // the position of the first, and how many there are
  Ahead<typename Kind::Number>* ahead;  // null for all but the first rows
};

// Adds to each sum the product of what is of its row and of what is across. The fewer are held in registers.
template <typename Kind, int Rows, int Across, typename OfColumn, typename OfRow>
inline __attribute__((always_inline)) void add_products(Vec (&sums)[Rows][Across], OfColumn across, OfRow of_row) {
  if constexpr (Rows < Across) {
    decltype(of_row(0)) rows[Rows];
#pragma GCC unroll 6
    for (int row = 0; row < Rows; ++row) rows[row] = of_row(row);
#pragma GCC unroll 8
    for (int i = 0; i < Across; ++i) {
      const auto column = across(i);
#pragma GCC unroll 6
      for (int row = 0; row < Rows; ++row) Kind::add(sums[row][i], column, rows[row]);
    }
  } else {
    decltype(across(0)) columns[Across];
#pragma GCC unroll 8
    for (int i = 0; i < Across; ++i) columns[i] = across(i);
#pragma GCC unroll 6
    for (int row = 0; row < Rows; ++row) {
      const auto x = of_row(row);
#pragma GCC unroll 8
      for (int i = 0; i < Across; ++i) Kind::add(sums[row][i], columns[i], x);
    }
  }
}

// Computes scores of `Rows` rows for a few vectors of positions, each as one sum over head_dim in order. Nothing is
// fetched if `ahead` is null.
template <typename Kind, int Rows, int Across = across(Rows)>
void score(const float* q, const typename Kind::Unit* turned, int64_t head_dim, float (*scores)[kTile],
           Ahead<typename Kind::Number>* ahead) {
  const int64_t units = (head_dim + Kind::kDepth - 1) / Kind::kDepth;
  Vec sums[Rows][Across] = {};
  for (int64_t d = 0; d < units; ++d, turned += kTile) {
    if (ahead && d % kStepsAhead == 0) ahead->after(kStepsAhead * Across * kLanes * Kind::kDepth);
    add_products<Kind>(
        sums, [=](int i) { return Kind::units(turned + i * kLanes); },
        [=](int row) { return Kind::spread(q + row * units + d); });
  }
#pragma GCC unroll 6
  for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 8
    for (int i = 0; i < Across; ++i) store(scores[row] + i * kLanes, sums[row][i]);
}

// Adds weighted values of some positions in order, for a few vectors of head_dim; `some` numbers if only one in part.
// Nothing is fetched if `ahead` is null.
template <typename Kind, int Rows, int Across>
void weigh(const float (*weights)[kTile], const typename Kind::Number* const* keys, Ahead<typename Kind::Number>* ahead,
           int64_t to_values, Span span, int64_t some, float* sums, int64_t state) {
  Vec out[Rows][Across];
#pragma GCC unroll 6
  for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 8
    for (int i = 0; i < Across; ++i) out[row][i] = load(sums + row * state + i * kLanes);
  for (int64_t unit = span.begin / Kind::kDepth; unit * Kind::kDepth < span.end; ++unit) {
    const int64_t position = unit * Kind::kDepth;
    if (ahead && unit % kStepsAhead == 0) ahead->after(kStepsAhead * Across * kLanes * Kind::kDepth);
    const typename Kind::template Values<Across> values(keys + position, to_values,
                                                        {span.begin - position, span.end - position}, some);
    add_products<Kind>(out, values, [=](int row) { return Kind::spread(weights[row] + unit); });
  }
#pragma GCC unroll 6
  for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 8
    for (int i = 0; i < Across; ++i) store(sums + row * state + i * kLanes, out[row][i]);
}

// Adds weighted values of all dimensions from `d` on.
template <typename Kind, int Rows, int Across = across(Rows)>
void weigh_from(int64_t d, const Work& work, const float (*weights)[kTile], const typename Kind::Number* const* keys,
                Ahead<typename Kind::Number>* ahead, Span span, float* sums) {
  const int64_t head_dim = work.all.head_dim, values = work.to_values();
  for (; d + Across * kLanes <= head_dim; d += Across * kLanes)
    weigh<Kind, Rows, Across>(weights, keys, ahead, values + d, span, 0, sums + d, work.state);
  if constexpr (Across > 1)
    return weigh_from<Kind, Rows, kLanes == 8 ? Across / 2 : 1>(d, work, weights, keys, ahead, span, sums);
  if (d < head_dim) weigh<Kind, Rows, 1>(weights, keys, ahead, values + d, span, head_dim - d, sums + d, work.state);
}

template <typename Kind, int Rows>
void weigh_all(const Work& work, const float (*weights)[kTile], const typename Kind::Number* const* keys,
               Ahead<typename Kind::Number>* ahead, Span span, float* sums) {
  if (!span.empty()) weigh_from<Kind, Rows>(0, work, weights, keys, ahead, span, sums);
}

// Returns the part of a span that is whole units.
template <typename Kind>
Span whole_units(Span span) {
  return {(span.begin + Kind::kDepth - 1) / Kind::kDepth * Kind::kDepth, span.end / Kind::kDepth * Kind::kDepth};
}

// Adds a tile to the states of `Rows` rows. A position that a row does not see takes no part in its sums at all: not
// even a product with 0 is added, which would not hide a NaN.
template <typename Kind, int Rows>
void add_tile(const Work& work, const float* q, const Tile<Kind>& tile, int64_t row, float* states) {
  alignas(64) float scores[Rows][kTile];
  const int64_t head_dim = work.all.head_dim;
  for (int64_t position = 0; position < tile.end; position += across(Rows) * kLanes)
    score<Kind, Rows>(q, tile.turned + position, head_dim, reinterpret_cast<float (*)[kTile]>(scores[0] + position),
                      tile.ahead);
  Span spans[Rows], common{0, kTile};
  for (int r = 0; r < Rows; ++r) {
    spans[r] = work.seen(row + r, tile.begin);
    if (spans[r].empty()) spans[r] = {0, 0};
    if (!spans[r].empty())
      soften(scores[r], spans[r].begin, spans[r].end, work.all.soft_cap, states + r * work.state, head_dim);
    Kind::round(scores[r]);
    if (spans[r].begin > common.begin) common.begin = spans[r].begin;
    if (spans[r].end < common.end) common.end = spans[r].end;
  }
  common = whole_units<Kind>(common);
  if (common.empty()) common = {kTile, kTile};
  for (int r = 0; r < Rows; ++r) {
    const Span before{spans[r].begin, spans[r].end < common.begin ? spans[r].end : common.begin};
    weigh_all<Kind, 1>(work, scores + r, tile.keys, nullptr, before, states + r * work.state);
  }
  weigh_all<Kind, Rows>(work, scores, tile.keys, tile.ahead, common, states);
  for (int r = 0; r < Rows && common.begin < kTile; ++r)
    weigh_all<Kind, 1>(work, scores + r, tile.keys, nullptr, {common.end, spans[r].end}, states + r * work.state);
}

template <typename Kind, int Rows = kTogether>
void add_tile_of(int64_t rows, const Work& work, const float* q, const Tile<Kind>& tile, int64_t row, float* states) {
  if (rows == Rows) return add_tile<Kind, Rows>(work, q, tile, row, states);
  if constexpr (Rows > 1) add_tile_of<Kind, Rows - 1>(rows, work, q, tile, row, states);
}

// Adds one segment of positions to the states of all rows. What follows it is the tile at `then`, if not -1, of the
// same head or of the next one.
template <typename Kind, typename Number = typename Kind::Number>
void add_segment(const Work& work, const float* q, typename Kind::Unit* turned, int64_t begin, int64_t end,
                 int64_t then, bool same_head, float* states) {
  const int64_t one_head = work.all.page_size * work.all.head_dim;
  const Number *first[kTile], *second[kTile];
  const Number **keys = first, **next = second;
  find_keys(work, begin, least(kTile, end - begin), keys);
  for (int64_t tile = begin; tile < end; tile += kTile) {
    const int64_t here = least(kTile, end - tile);
    const bool last = tile + here >= end;
    Ahead<Number> ahead;
    if (!last) {
      find_keys(work, tile + kTile, least(kTile, end - tile - kTile), next);
    } else if (then >= 0) {
      find_keys(work, then, least(kTile, work.seen_by_all().end - then), next);
      for (int64_t i = 0; i < kTile; ++i) next[i] += same_head ? 0 : one_head;
    }
    if (!last || then >= 0) ahead.take(next, work);
    turn_keys<Kind>(keys, work.all.head_dim, here, turned, ahead);
    for (int64_t row = 0; row < work.rows; row += kTogether)
      add_tile_of<Kind>(least(kTogether, work.rows - row), work, q + row * work.units<Kind>(),
                        {keys, turned, tile, here, row == 0 ? &ahead : nullptr}, row, states + row * work.state);
    const Number** before = keys;
    keys = next, next = before;
  }
}

// Computes the part of one key-value head, or only one segment of it; `more` says whether another head follows.
template <typename Kind>
void attend_head(const Attention& all, const AttentionPart& part, bool more) {
  const Work work(all, part);
  float* q = part.scratch;  // units, whatever their type is
  float* room = q + work.rows * all.head_dim;
  auto* turned = reinterpret_cast<typename Kind::Unit*>(room);
  float* sums = room + all.head_dim * kTile;
  float* states = part.states ? part.states : sums + work.rows * work.state;
  for (int64_t row = 0; row < work.rows; ++row) {
    const float* from = all.q + work.place(row);
    for (int64_t unit = 0; unit < work.units<Kind>(); ++unit) {
      const int64_t d = unit * Kind::kDepth, left = all.head_dim - d;
      const float scaled[2] = {from[d] * all.scale, left > 1 ? from[d + 1] * all.scale : 0.0f};
      const typename Kind::Unit x = Kind::unit(scaled, left);
      std::memcpy(q + row * work.units<Kind>() + unit, &x, sizeof x);
    }
    clear(sums + row * work.state, all.head_dim);
  }
  const int64_t first = part.states ? part.segment * kSegment : 0;
  const int64_t last = part.states ? first + kSegment : work.room;
  const Span seen = work.seen_by_all();
  const int64_t end = least(seen.end, last), start = (seen.begin > first ? seen.begin : first) / kTile * kTile;
  for (int64_t begin = start, stop; begin < end; begin = stop) {
    stop = (begin / kSegment + 1) * kSegment;
    for (int64_t row = 0; row < work.rows; ++row) clear(states + row * work.state, all.head_dim);
    const int64_t then = stop < end ? stop : more ? start : -1;
    add_segment<Kind>(work, q, turned, begin, least(end, stop), then, stop < end, states);
    if (part.states) return;
    for (int64_t row = 0; row < work.rows; ++row)
      merge(sums + row * work.state, states + row * work.state, all.head_dim);
  }
  for (int64_t row = 0; row < work.rows; ++row)
    finish(sums + row * work.state, all.head_dim, work.sink(row), all.out + work.place(row));
}

template <typename Kind>
void attend(const Attention& all, const AttentionPart& part) {
  AttentionPart of_head = part;
  for (int64_t left = part.kv_heads; left > 0; --left, ++of_head.kv_head) attend_head<Kind>(all, of_head, left > 1);
}

// Adds up the states of one query's segments in order.
void combine(const Attention& all, const AttentionPart& part, int64_t segments) {
  const Work work(all, part);
  float* sums = part.scratch;
  for (int64_t row = 0; row < work.group; ++row) {
    clear(sums, all.head_dim);
    for (int64_t segment = 0; segment < segments; ++segment)
      merge(sums, part.states + (segment * work.group + row) * work.state, all.head_dim);
    finish(sums, all.head_dim, work.sink(row), all.out + work.place(row));
  }
}

}  // namespace
