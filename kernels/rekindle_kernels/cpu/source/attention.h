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
  const float (*scales)[kTile];           // by group of keys, then of values, and by position, if they have scales
  int64_t begin, end;                     // the first position, and the number of positions
  Ahead<typename Kind::Number>* ahead;    // null for all but the first rows
};

// Computes scores of `Rows` rows for a few vectors of positions, each as one sum over units in order. Nothing is
// fetched if `ahead` is null.
template <typename Kind, int Rows, int Across = across(Rows)>
void score(const float* q, int64_t of_query, const typename Kind::Unit* transposed, int64_t units,
           float (*scores)[kTile], Ahead<typename Kind::Number>* ahead) {
  typename Kind::Sums sums[Rows][Across] = {};
  for (int64_t d = 0; d < units; ++d, transposed += kTile) {
    if (ahead && d % kStepsAhead == 0) ahead->after(kStepsAhead * Across * kLanes * Kind::kDepth);
    add_products<Kind>(
        sums, [=](int i) { return Kind::units(transposed + i * kLanes); },
        [=](int row) { return Kind::spread(q + row * of_query + d); });
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
  constexpr int64_t kWhole = Kind::kWhole;
  const int64_t first = span.begin / kWhole * kWhole, last = (span.end + kWhole - 1) / kWhole * kWhole;
  for (int64_t unit = first / Kind::kDepth; unit * Kind::kDepth < last; ++unit) {
    const int64_t place = Kind::place(unit), position = place * Kind::kDepth;
    if (ahead && unit % kStepsAhead == 0) ahead->after(kStepsAhead * Across * kLanes * Kind::kDepth);
    const typename Kind::template Values<Across> values(keys + position, to_values,
                                                        {span.begin - position, span.end - position}, some);
    add_products<Kind>(out, values, [=](int row) { return Kind::spread(weights[row] + place); });
  }
#pragma GCC unroll 6
  for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 8
    for (int i = 0; i < Across; ++i) store(sums + row * state + i * kLanes, out[row][i]);
}

// Adds weighted values of the dimensions from `d` to `last`.
template <typename Kind, int Rows, int Across = across(Rows)>
void weigh_from(int64_t d, int64_t last, const Work& work, const float (*weights)[kTile],
                const typename Kind::Number* const* keys, Ahead<typename Kind::Number>* ahead, Span span, float* sums) {
  const int64_t values = work.to_values();
  for (; d + Across * kLanes <= last; d += Across * kLanes)
    weigh<Kind, Rows, Across>(weights, keys, ahead, values + d, span, 0, sums + d, work.state);
  if constexpr (Across > 1)
    return weigh_from<Kind, Rows, kLanes == 8 ? Across / 2 : 1>(d, last, work, weights, keys, ahead, span, sums);
  if (d < last) weigh<Kind, Rows, 1>(weights, keys, ahead, values + d, span, last - d, sums + d, work.state);
}

// Returns the part of a span whose positions are added together.
template <typename Kind>
Span whole_part(Span span) {
  return {(span.begin + Kind::kWhole - 1) / Kind::kWhole * Kind::kWhole, span.end / Kind::kWhole * Kind::kWhole};
}

// Computes scores of `Rows` rows for all positions of a tile, from the dimensions from `d` to `last`.
template <typename Kind, int Rows>
void score_tile(const Work& work, const float* q, const Tile<Kind>& tile, int64_t d, int64_t last,
                float (*scores)[kTile]) {
  const int64_t first = Kind::count(d), units = Kind::count(last) - first;
  for (int64_t position = 0; position < tile.end; position += across(Rows) * kLanes)
    score<Kind, Rows>(q + first, rekindle::query_room(work.all.head_dim), tile.transposed + first * kTile + position,
                      units, reinterpret_cast<float (*)[kTile]>(scores[0] + position), tile.ahead);
}

// Computes scaled scores of `Rows` rows as sums over groups of dimensions in order.
template <typename Kind, int Rows>
void score_groups(const Work& work, const float* q, const Tile<Kind>& tile, float (*scores)[kTile]) {
  alignas(64) float more[Rows][kTile];
  const int64_t head_dim = work.all.head_dim;
  for (int64_t d = 0, group = 0; d < head_dim; d += kScaleGroup, ++group) {
    float (*part)[kTile] = group ? more : scores;
    score_tile<Kind, Rows>(work, q, tile, d, least(d + kScaleGroup, head_dim), part);
    for (int r = 0; r < Rows; ++r) {
      const float factor = q[r * rekindle::query_room(head_dim) + Kind::count(head_dim)];
      scale_all(part[r], tile.scales[group], factor, part[r]);
      if (group) add_all(part[r], scores[r]);
    }
  }
}

// Adds weighted values of the dimensions from `d` to `last` to the states of `Rows` rows: those of the positions in
// common together, and all others row by row.
template <typename Values, int Rows, typename Kind>
void weigh_spans(int64_t d, int64_t last, const Work& work, const float (*weights)[kTile], const Tile<Kind>& tile,
                 const Span (&spans)[Rows], Span common, float* states) {
  const auto of_row = [&](int r, Span span) {
    float* sums = states + r * work.state;
    if (!span.empty()) weigh_from<Values, 1>(d, last, work, weights + r, tile.keys, nullptr, span, sums);
  };
  for (int r = 0; r < Rows; ++r) of_row(r, {spans[r].begin, least(spans[r].end, common.begin)});
  if (!common.empty()) weigh_from<Values, Rows>(d, last, work, weights, tile.keys, tile.ahead, common, states);
  for (int r = 0; r < Rows && common.begin < kTile; ++r) of_row(r, {common.end, spans[r].end});
}

// Adds a tile to the states of `Rows` rows. A position invisible to a row is left out of its sums entirely: a product
// with 0 would not hide a NaN.
template <typename Kind, int Rows>
void add_tile(const Work& work, const float* q, const Tile<Kind>& tile, int64_t row, float* states) {
  alignas(64) float scores[Rows][kTile];
  using Values = typename Kind::OfValues;
  const int64_t head_dim = work.all.head_dim;
  if constexpr (Kind::kScaled)
    score_groups<Kind, Rows>(work, q, tile, scores);
  else
    score_tile<Kind, Rows>(work, q, tile, 0, head_dim, scores);
  Span spans[Rows], common{0, kTile};
  for (int r = 0; r < Rows; ++r) {
    spans[r] = work.seen(row + r, tile.begin);
    if (spans[r].empty()) spans[r] = {0, 0};
    if (!spans[r].empty())
      soften(scores[r], spans[r].begin, spans[r].end, work.all.soft_cap, states + r * work.state, head_dim);
    Values::round(scores[r]);
    if (spans[r].begin > common.begin) common.begin = spans[r].begin;
    if (spans[r].end < common.end) common.end = spans[r].end;
  }
  common = whole_part<Values>(common);
  if (common.empty()) common = {kTile, kTile};
  if constexpr (!Kind::kScaled) {
    weigh_spans<Values>(0, head_dim, work, scores, tile, spans, common, states);
  } else {
    alignas(64) float weights[Rows][kTile];
    const float (*scales)[kTile] = tile.scales + rekindle::scale_groups(head_dim);
    for (int64_t d = 0; d < head_dim; d += kScaleGroup, ++scales) {
      for (int r = 0; r < Rows; ++r) scale_all(scores[r], *scales, 1.0f, weights[r]);
      weigh_spans<Values>(d, least(d + kScaleGroup, head_dim), work, weights, tile, spans, common, states);
    }
  }
}

template <typename Kind, int Rows = kTogether>
void add_tile_of(int64_t rows, const Work& work, const float* q, const Tile<Kind>& tile, int64_t row, float* states) {
  if (rows == Rows) return add_tile<Kind, Rows>(work, q, tile, row, states);
  if constexpr (Rows > 1) add_tile_of<Kind, Rows - 1>(rows, work, q, tile, row, states);
}

// Adds one segment of positions to the states of all rows, and prefetches the first tile of the next computation.
template <typename Kind, typename Number = typename Kind::Number>
void add_segment(const Work& work, const float* q, typename Kind::Unit* transposed, float (*scales)[kTile], Span span,
                 const Next& then, float* states) {
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
    if constexpr (Kind::kScaled)
      for (int64_t group = 0, groups = rekindle::scale_groups(work.all.head_dim); group < groups; ++group)
        for (int64_t i = 0; i < kTile; ++i) {
          scales[group][i] = scale_of(keys[i], work.all.head_dim, group);
          scales[groups + group][i] = scale_of(keys[i] + work.to_values(), work.all.head_dim, group);
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
  float* of_scales = room + rekindle::keys_room(all.head_dim);
  auto* scales = reinterpret_cast<float (*)[kTile]>(of_scales);
  float* sums = of_scales + rekindle::scales_room(all.head_dim);
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
    add_segment<Kind>(work, q, transposed, scales, {begin, end}, then, states);
    if (part.states) return;
    for (int64_t row = 0; row < work.rows; ++row)
      merge(sums + row * work.state, states + row * work.state, all.head_dim);
  }
  for (int64_t row = 0; row < work.rows; ++row)
    finish(sums + row * work.state, all.head_dim, work.sink(row), all.out + work.place(row));
}

// Adds up the states of one query's segments in order.
inline void combine(const Attention& all, const AttentionPart& part, int64_t segments) {
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
