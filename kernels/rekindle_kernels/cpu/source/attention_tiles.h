// Paged attention over bfloat16 pages by tiles: scores, and weighted values. See tiles.h and attention.h.
//
// The rows of a part are multiplied 16 at a time. A decode row is a part of few rows, with the same bits.
#pragma once

#include <vector>

#include "attention.h"
#include "tiles.h"

namespace {

// The products of `Paired`, by tiles.
struct Tiled : Paired {};

inline void transpose_square(Tiled, const uint16_t* const* keys, int64_t d, int64_t left, uint32_t* to) {
  transpose_square(Paired{}, keys, d, left, to);
}

// The room of a thread for one tile of positions.
struct TileRoom {
  uint32_t *keys, *values;  // [pairs of head_dim][64 positions], [32 pairs of positions][head_dim]
  float (*scores)[kTile];   // by row; then the weights, in pairs of bfloat16

  TileRoom(int64_t rows, int64_t head_dim) {
    static thread_local std::vector<float> room;
    const size_t size = kTile * head_dim + rows * kTile + 16;
    if (room.size() < size) room.resize(size);
    float* at = room.data();
    at += (64 - reinterpret_cast<uintptr_t>(at) % 64) % 64 / sizeof *at;
    keys = reinterpret_cast<uint32_t*>(at);
    values = keys + kTile / 2 * head_dim;
    scores = reinterpret_cast<float (*)[kTile]>(values + kTile / 2 * head_dim);
  }
};

// Adds products of some rows with four tiles of columns, from `first` on: the inputs of a step are 64 bytes on, and its
// weights 16 pairs further.
struct TileProduct {
  const float* x;
  int64_t x_stride;
  const uint32_t* weights;
  int64_t weight_stride, steps;

  // Adds to the sums of the registers 0 to `kTiles` - 1.
  template <int kTiles>
  void add(Registers& registers, int64_t column) const {
    const char* from = reinterpret_cast<const char*>(x);
    const uint32_t* weight = weights + column;
    for (int64_t step = 0; step < steps; ++step, from += kTileBytes, weight += kTileRows * weight_stride) {
      registers.load<4>(from, x_stride * 4);
      registers.load<6>(weight, weight_stride * 4);
      registers.multiply<0, 4, 6>();
      registers.load<7>(weight + kTileOutputs, weight_stride * 4);
      registers.multiply<1, 4, 7>();
      if constexpr (kTiles == 4) {
        registers.load<6>(weight + 2 * kTileOutputs, weight_stride * 4);
        registers.multiply<2, 4, 6>();
        registers.load<7>(weight + 3 * kTileOutputs, weight_stride * 4);
        registers.multiply<3, 4, 7>();
      }
    }
  }
};

template <int kTiles>
void load_columns(Registers& registers, const float* from, int64_t stride) {
  registers.load<0>(from, stride * 4);
  registers.load<1>(from + kTileOutputs, stride * 4);
  if constexpr (kTiles == 4) {
    registers.load<2>(from + 2 * kTileOutputs, stride * 4);
    registers.load<3>(from + 3 * kTileOutputs, stride * 4);
  }
}

template <int kTiles>
void store_columns(Registers& registers, float* to, int64_t stride) {
  registers.store<0>(to, stride * 4);
  registers.store<1>(to + kTileOutputs, stride * 4);
  if constexpr (kTiles == 4) {
    registers.store<2>(to + 2 * kTileOutputs, stride * 4);
    registers.store<3>(to + 3 * kTileOutputs, stride * 4);
  }
}

// Computes the scores of up to 16 rows for the 64 positions of a tile.
inline void score_by_tiles(Registers& registers, const float* q, int64_t head_dim, const uint32_t* keys,
                           float* scores) {
  const TileProduct product{q, rekindle::query_room(head_dim), keys, kTile, head_dim / kTileInputs};
  registers.zero<0>();
  registers.zero<1>();
  registers.zero<2>();
  registers.zero<3>();
  product.add<4>(registers, 0);
  store_columns<4>(registers, scores, kTile);
}

// Adds the weighted values of a tile's positions to the states of up to 16 rows.
inline void weigh_by_tiles(Registers& registers, const float* weights, int64_t head_dim, const uint32_t* values,
                           float* states, int64_t state) {
  const TileProduct product{weights, kTile, values, head_dim, kTile / kTileInputs};
  int64_t d = 0;
  for (; d + 4 * kTileOutputs <= head_dim; d += 4 * kTileOutputs) {
    load_columns<4>(registers, states + d, state);
    product.add<4>(registers, d);
    store_columns<4>(registers, states + d, state);
  }
  for (; d < head_dim; d += 2 * kTileOutputs) {
    load_columns<2>(registers, states + d, state);
    product.add<2>(registers, d);
    store_columns<2>(registers, states + d, state);
  }
}

// Writes the paired values of the positions in `seen`, and zeros for others; returns whether all are finite.
inline bool pair_values(const Work& work, const uint16_t* const* keys, Span seen, uint32_t* to,
                        Ahead<uint16_t>* ahead) {
  const int64_t head_dim = work.all.head_dim, from = work.to_values();
  Bits sizes{};  // an exponent of ones becomes a sign
  const auto put = [&](int64_t place, __m512bh pairs) {
    sizes |= ((Bits)pairs & 0x7f807f80u) + 0x00800080u;
    std::memcpy(to + place, &pairs, sizeof pairs);
  };
  for (int64_t position = 0; position < kTile; position += 2, to += head_dim) {
    if (ahead) ahead->after(4 * head_dim);
    const Span two{seen.begin - position, seen.end - position};
    int64_t d = 0;
    for (; d + 4 * kLanes <= head_dim; d += 4 * kLanes) {
      const Paired::Values<4> values(keys + position, from + d, two, 0);
      for (int i = 0; i < 4; ++i) put(d + i * kLanes, values(i));
    }
    for (; d < head_dim; d += kLanes) put(d, Paired::Values<1>(keys + position, from + d, two, 0)(0));
  }
  Bits signs = sizes & 0x80008000u;
  uint32_t any = 0;
  for (int lane = 0; lane < kLanes; ++lane) any |= signs[lane];
  return any == 0;
}

// The rows that see some of a tile's positions are adjacent.
inline Span rows_that_see(const Work& work, int64_t tile) {
  Span rows{0, work.rows};
  while (!rows.empty() && work.seen(rows.begin, tile).empty()) ++rows.begin;
  while (!rows.empty() && work.seen(rows.end - 1, tile).empty()) --rows.end;
  return rows;
}

// Adds a tile of positions to the states of all rows. A weight of 0 does not hide a value that is not finite: such
// tiles are added row by row, with zeros as values of invisible positions.
inline void add_tile_by_tiles(Registers& registers, const Work& work, const float* q, const uint16_t* const* keys,
                              int64_t tile, const TileRoom& room, bool finite, float* states) {
  const int64_t head_dim = work.all.head_dim, of_query = rekindle::query_room(head_dim);
  const Span rows = rows_that_see(work, tile);
  for (int64_t row = rows.begin; row < rows.end; row += kTileRows) {
    registers.shape(least(kTileRows, rows.end - row), least(kTileRows, rows.end - row));
    score_by_tiles(registers, q + row * of_query, head_dim, room.keys, room.scores[row]);
  }
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const Span seen = work.seen(row, tile);
    soften(room.scores[row], seen.begin, seen.end, work.all.soft_cap, states + row * work.state, head_dim);
    Paired::round(room.scores[row]);
  }
  const int64_t together = finite ? kTileRows : 1;
  for (int64_t row = rows.begin; row < rows.end; row += together) {
    if (!finite) pair_values(work, keys, work.seen(row, tile), room.values, nullptr);
    registers.shape(least(together, rows.end - row), least(together, rows.end - row));
    weigh_by_tiles(registers, room.scores[row], head_dim, room.values, states + row * work.state, work.state);
  }
}

template <>
inline void add_segment<Tiled, uint16_t>(const Work& work, const float* q, uint32_t*, float (*)[kTile], Span span,
                                         const Next& then, float* states) {
  const TileRoom room(work.rows, work.all.head_dim);
  Registers registers;
  const uint16_t *first[kTile], *second[kTile];
  const uint16_t **keys = first, **next = second;
  find_keys(work, span.begin, least(kTile, span.end - span.begin), keys);
  for (int64_t tile = span.begin; tile < span.end; tile += kTile) {
    const int64_t here = least(kTile, span.end - tile);
    const Next after = tile + here < span.end ? Next{&work, {tile + here, span.end}} : then;
    Ahead<uint16_t> ahead;
    if (!after.positions.empty()) {
      const int64_t count = after.positions.end - after.positions.begin;
      find_keys(*after.work, after.positions.begin, least(kTile, count), next);
      ahead.take(next, *after.work);
    }
    transpose_keys<Tiled>(keys, work.all.head_dim, here, room.keys, ahead);
    const bool finite = pair_values(work, keys, {0, here}, room.values, &ahead);
    add_tile_by_tiles(registers, work, q, keys, tile, room, finite, states);
    const uint16_t** before = keys;
    keys = next, next = before;
  }
}

}  // namespace
