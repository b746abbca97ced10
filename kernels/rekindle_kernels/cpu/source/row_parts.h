// The division of linear layers into parts of rows and panels, on XLA's threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "kernels.h"
#include "later.h"

namespace rekindle {

constexpr int64_t kPartsAThread = 3;  // more than one, so that a late thread takes fewer

// The scratch of a thread, and the rows left in it by a part of a linear layer.
struct Scratch {
  int64_t rows = -1;
  std::vector<char> bytes;

  // Makes room for the rows of a part, identified by a number, and returns whether they are present already.
  bool holds(int64_t number, int64_t size) {
    const bool found = rows == number;
    rows = number;
    if (static_cast<int64_t>(bytes.size()) < size) bytes.resize(size);
    return found;
  }
};

inline thread_local Scratch scratch_of_rows;
inline std::atomic<int64_t> blocks_of_rows{0};  // of all calls

using Numbers = std::shared_ptr<float[]>;

inline const Linear& plain(const Linear& layer) { return layer; }
inline const Linear& plain(const StoredLinear& layer) { return layer.all; }

// Computes linear layers of equal shapes except for their rows, in parts taken by threads one after the other, each by
// `run` with `size(rows)` bytes of scratch. Data outside XLA's buffers is kept alive until the end.
template <typename Layer, typename Size, typename Run, typename Data>
ffi::Future in_row_parts(ffi::ThreadPool& pool, const std::vector<Layer>& layers, int64_t panels, Size size, Run run,
                         Data data) {
  struct Rows {
    Layer layer;
    int64_t first, rows;
  };
  std::vector<Rows> blocks;
  for (const Layer& layer : layers)
    for (int64_t block = 0, rows = plain(layer).rows, cut = (rows + kRows - 1) / kRows; block < cut; ++block) {
      const int64_t first = rows * block / cut;
      blocks.push_back({layer, first, rows * (block + 1) / cut - first});
    }
  const int64_t many = blocks.size(), wanted = kPartsAThread * std::max<int64_t>(1, pool.num_threads());
  if (many == 0) return done();
  const int64_t groups = std::min(panels, (wanted + many - 1) / many);
  const int64_t call = blocks_of_rows += many;
  return in_parts(pool, many * groups, [=, blocks = std::move(blocks), data = std::move(data)](int64_t part) {
    const int64_t block = part / groups, group = part % groups;
    const Rows& rows = blocks[block];
    const int64_t first_panel = panels * group / groups, part_panels = panels * (group + 1) / groups - first_panel;
    const bool there = scratch_of_rows.holds(call - block, size(rows.rows));
    run(rows.layer, {rows.first, rows.rows, first_panel, part_panels, scratch_of_rows.bytes.data(), there});
    (void)data;
  });
}

}  // namespace rekindle
