// Paged attention: an online softmax over tiles of positions, read in place from the pages.
#pragma once

#include "kernels.h"
#include "keys.h"
#include "products.h"
#include "softmax.h"

namespace {

constexpr int kTogether = 6;  // rows of a product in registers

// The number of vectors of a product's row in registers. Fewer rows leave room for more vectors. Each sum depends on
// the previous one, so few vectors would leave the processor idle.
constexpr int across(int rows) { return kLanes != 8 ? 4 : rows == 1 ? 8 : rows <= 3 ? 4 : 2; }

constexpr int kStepsAhead = 4;  // loop steps between prefetches

// A tile of positions of one head.
template <typename Kind>
struct Tile {
  const typename Kind::Number* const* keys;
  const typename Kind::Unit* transposed;  // the keys as [units of head_dim][64]
  const float (*scales)[kTile];           // of keys and of values, by position, if they have scales
  int64_t begin, end;                     // the first position, and the number of positions
  Ahead<typename Kind::Number>* ahead;    // null for all but the first rows
};

// Computes scores of `Rows` rows for a few vectors of positions, each as one sum over head_dim in order. Nothing is
// fetched if `ahead` is null.
template <typename Kind, int Rows, int Across = across(Rows)>
void score(const float* q, const typename Kind::Unit* transposed, int64_t head_dim, float (*scores)[kTile],
           Ahead<typename Kind::Number>* ahead) {
  const int64_t units = Kind::count(head_dim);
  typename Kind::Sums sums[Rows][Across] = {};
  for (int64_t d = 0; d < units; ++d, transposed += kTile) {
    if (ahead && d % kStepsAhead == 0) ahead->after(kStepsAhead * Across * kLanes * Kind::kDepth);
    add_products<Kind>(
        sums, [=](int i) { return Kind::units(transposed + i * kLanes); },
        [=](int row) { return Kind::spread(q + row * rekindle::query_room(head_dim) + d); });
  }
#pragma GCC unroll 6
  for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 8
    for (int i = 0; i < Across; ++i) store(scores[row] + i * kLanes, as_floats(sums[row][i]));
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

// Adds a tile to the states of `Rows` rows. A position invisible to a row is left out of its sums entirely: a product
// with 0 would not hide a NaN.
template <typename Kind, int Rows>
void add_tile(const Work& work, const float* q, const Tile<Kind>& tile, int64_t row, float* states) {
  alignas(64) float scores[Rows][kTile];
  using Values = typename Kind::OfValues;
  const int64_t head_dim = work.all.head_dim;
  for (int64_t position = 0; position < tile.end; position += across(Rows) * kLanes)
    score<Kind, Rows>(q, tile.transposed + position, head_dim, reinterpret_cast<float (*)[kTile]>(scores[0] + position),
                      tile.ahead);
  Span spans[Rows], common{0, kTile};
  for (int r = 0; r < Rows; ++r) {
    spans[r] = work.seen(row + r, tile.begin);
    if (spans[r].empty()) spans[r] = {0, 0};
    if (!spans[r].empty()) {
      if constexpr (Kind::kScaled)
        scale_all(scores[r], tile.scales[0], q[r * rekindle::query_room(head_dim) + Kind::count(head_dim)]);
      soften(scores[r], spans[r].begin, spans[r].end, work.all.soft_cap, states + r * work.state, head_dim);
      if constexpr (Kind::kScaled) scale_all(scores[r], tile.scales[1], 1.0f);
    }
    Values::round(scores[r]);
    if (spans[r].begin > common.begin) common.begin = spans[r].begin;
    if (spans[r].end < common.end) common.end = spans[r].end;
  }
  common = whole_units<Values>(common);
  if (common.empty()) common = {kTile, kTile};
  for (int r = 0; r < Rows; ++r) {
    const Span before{spans[r].begin, spans[r].end < common.begin ? spans[r].end : common.begin};
    weigh_all<Values, 1>(work, scores + r, tile.keys, nullptr, before, states + r * work.state);
  }
  weigh_all<Values, Rows>(work, scores, tile.keys, tile.ahead, common, states);
  for (int r = 0; r < Rows && common.begin < kTile; ++r)
    weigh_all<Values, 1>(work, scores + r, tile.keys, nullptr, {common.end, spans[r].end}, states + r * work.state);
}

template <typename Kind, int Rows = kTogether>
void add_tile_of(int64_t rows, const Work& work, const float* q, const Tile<Kind>& tile, int64_t row, float* states) {
  if (rows == Rows) return add_tile<Kind, Rows>(work, q, tile, row, states);
  if constexpr (Rows > 1) add_tile_of<Kind, Rows - 1>(rows, work, q, tile, row, states);
}

// Adds one segment of positions to the states of all rows, and prefetches the first tile of the next computation.
template <typename Kind, typename Number = typename Kind::Number>
void add_segment(const Work& work, const float* q, typename Kind::Unit* transposed, Span span, const Next& then,
                 float* states) {
  const Number *first[kTile], *second[kTile];
  const Number **keys = first, **next = second;
  find_keys(work, span.begin, least(kTile, span.end - span.begin), keys);
  for (int64_t tile = span.begin; tile < span.end; tile += kTile) {
    const int64_t here = least(kTile, span.end - tile);
    const Next after = tile + here < span.end ? Next{&work, {tile + here, span.end}} : then;
    Ahead<Number> ahead;
    if (!after.positions.empty()) {
      const int64_t count = after.positions.end - after.positions.begin;
      find_keys(*after.work, after.positions.begin, least(kTile, count), next);
      ahead.take(next, *after.work);
    }
    transpose_keys<Kind>(keys, work.all.head_dim, here, transposed, ahead);
    alignas(64) float scales[2][kTile];
    if constexpr (Kind::kScaled)
      for (int64_t i = 0; i < kTile; ++i) {
        scales[0][i] = scale_of(keys[i], work.all.head_dim);
        scales[1][i] = scale_of(keys[i] + work.to_values(), work.all.head_dim);
      }
    for (int64_t row = 0; row < work.rows; row += kTogether)
      add_tile_of<Kind>(least(kTogether, work.rows - row), work, q + row * rekindle::query_room(work.all.head_dim),
                        {keys, transposed, scales, tile, here, row == 0 ? &ahead : nullptr}, row,
                        states + row * work.state);
    const Number** before = keys;
    keys = next, next = before;
  }
}

template <typename Kind>
void attend(const Attention& all, const AttentionPart& part) {
  const Work work(all, part), later(all, part.next ? *part.next : part);
  const int64_t of_query = rekindle::query_room(all.head_dim);
  float* q = part.scratch;  // units of any type
  float* room = q + work.rows * of_query;
  auto* transposed = reinterpret_cast<typename Kind::Unit*>(room);
  float* sums = room + rekindle::keys_room(all.head_dim);
  float* states = part.states ? part.states : sums + work.rows * work.state;
  for (int64_t row = 0; row < work.rows; ++row) {
    Kind::convert(all.q + work.place(row), all.head_dim, all.scale, q + row * of_query);
    clear(sums + row * work.state, all.head_dim);
  }
  const Span span = work.positions();
  for (int64_t begin = span.begin, end; begin < span.end; begin = end) {
    end = least(span.end, (begin / kSegment + 1) * kSegment);
    for (int64_t row = 0; row < work.rows; ++row) clear(states + row * work.state, all.head_dim);
    const Next then = end < span.end ? Next{&work, {end, span.end}}
                      : part.next    ? Next{&later, later.positions()}
                                     : Next{nullptr, {0, 0}};
    add_segment<Kind>(work, q, transposed, {begin, end}, then, states);
    if (part.states) return;
    for (int64_t row = 0; row < work.rows; ++row)
      merge(sums + row * work.state, states + row * work.state, all.head_dim);
  }
  for (int64_t row = 0; row < work.rows; ++row)
    finish(sums + row * work.state, all.head_dim, work.sink(row), all.out + work.place(row));
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
