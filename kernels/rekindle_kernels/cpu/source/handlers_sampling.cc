// XLA handlers of sampling operations over the vocabulary.
#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "handler.h"
#include "kernels.h"
#include "parallel.h"

namespace rekindle {
namespace {

using Words = ffi::Buffer<ffi::U32, 1>;
using Marks = ffi::Buffer<ffi::S32, 2>;

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Returns whether all arguments have one number per row.
template <typename... Vectors>
bool of_rows(int64_t rows, const Vectors&... each) {
  return ((static_cast<int64_t>(each.element_count()) == rows) && ...);
}

// Calls `run(part, first, tokens)` for parts of the tokens.
template <typename Run>
void for_tokens(ffi::ThreadPool& pool, int64_t tokens, Run run) {
  parallel_for(pool, (tokens + kTokens - 1) / kTokens, [&](int64_t part) {
    const int64_t first = part * kTokens;
    run(part, first, std::min(kTokens, tokens - first));
  });
}

ffi::Error mass(ffi::ThreadPool pool, Matrix x, Vector largest, Vector temperature, Vector least,
                ffi::Result<Vector> sums) {
  const int64_t tokens = x.dimensions()[0], rows = x.dimensions()[1];
  if (!of_rows(rows, largest, temperature, least, *sums))
    return ffi::Error::InvalidArgument("a mass got arrays of shapes that do not fit together");
  const Mass all{x.typed_data(), largest.typed_data(), temperature.typed_data(), least.typed_data(), tokens, rows};
  const int64_t parts = (tokens + kTokens - 1) / kTokens;
  std::vector<float> of_parts(parts * rows);
  for_tokens(pool, tokens, [&](int64_t part, int64_t first, int64_t count) {
    kernels()->mass(all, first, count, of_parts.data() + part * rows);
  });
  float* to = sums->typed_data();
  std::fill_n(to, rows, 0.0f);
  for (int64_t part = 0; part < parts; ++part)
    for (int64_t row = 0; row < rows; ++row) to[row] += of_parts[part * rows + row];
  return ffi::Error::Success();
}

ffi::Error draw(ffi::ThreadPool pool, Matrix x, Words first, Words second, Vector largest, Vector temperature,
                Vector least, ffi::Result<Ids> drawn) {
  const int64_t tokens = x.dimensions()[0], rows = x.dimensions()[1], parts = (tokens + kTokens - 1) / kTokens;
  if (!of_rows(rows, first, second, largest, temperature, least, *drawn))
    return ffi::Error::InvalidArgument("a draw got arrays of shapes that do not fit together");
  const Draw all{x.typed_data(),
                 first.typed_data(),
                 second.typed_data(),
                 largest.typed_data(),
                 temperature.typed_data(),
                 least.typed_data(),
                 tokens,
                 rows};
  std::vector<float> scores(parts * rows);
  std::vector<int32_t> places(parts * rows);
  for_tokens(pool, tokens, [&](int64_t part, int64_t begin, int64_t count) {
    kernels()->draw(all, begin, count, scores.data() + part * rows, places.data() + part * rows);
  });
  for (int64_t row = 0; row < rows; ++row) {
    int64_t best = row;
    for (int64_t at = row + rows; at < parts * rows; at += rows)
      if (scores[at] > scores[best]) best = at;
    drawn->typed_data()[row] = places[best];
  }
  return ffi::Error::Success();
}

// Logits with the maxima of their blocks of tokens, [blocks][rows]: infinity for a block with a NaN.
struct Blocks {
  const float* x;  // [tokens][rows]
  int64_t tokens, rows;
  std::vector<float> maxima;

  Blocks(ffi::ThreadPool& pool, const Matrix& matrix)
      : x(matrix.typed_data()), tokens(matrix.dimensions()[0]), rows(matrix.dimensions()[1]), maxima(count() * rows) {
    constexpr int64_t kTogether = 32;     // blocks in a part
    constexpr int64_t kFew = 128 * 1024;  // numbers read before another thread is awake
    const int64_t together = tokens * rows < kFew ? std::max(kTogether, count()) : kTogether;
    parallel_for(pool, (count() + together - 1) / together, [&](int64_t part) {
      const int64_t first = part * together, blocks = std::min(together, count() - first);
      kernels()->maxima(x, tokens, rows, first, blocks, maxima.data());
    });
  }

  int64_t count() const { return (tokens + kBlock - 1) / kBlock; }

  // Calls `see(token, number)` for the numbers of a row not below a bound, in order.
  template <typename See>
  void reaching(float bound, int64_t row, See see) const {
    for (int64_t block = 0; block < count(); ++block) {
      if (maxima[block * rows + row] < bound) continue;
      const int64_t end = std::min(tokens, (block + 1) * kBlock);
      for (int64_t token = block * kBlock; token < end; ++token)
        if (const float number = x[token * rows + row]; number >= bound) see(token, number);
    }
  }

  // Returns the first token of a row with a number not below the largest maximum; the number may be a NaN.
  int64_t first_not_below(float top, int64_t row) const {
    for (int64_t block = 0; block < count(); ++block) {
      if (maxima[block * rows + row] < top) continue;
      const int64_t end = std::min(tokens, (block + 1) * kBlock);
      for (int64_t token = block * kBlock; token < end; ++token)
        if (!(x[token * rows + row] < top)) return token;
    }
    return tokens - 1;
  }
};

ffi::Error argmax(ffi::ThreadPool pool, Matrix x, ffi::Result<Ids> found) {
  const int64_t rows = x.dimensions()[1];
  if (!of_rows(rows, *found))
    return ffi::Error::InvalidArgument("a search for the largest got arrays of shapes that do not fit together");
  const Blocks blocks(pool, x);
  for (int64_t row = 0; row < rows; ++row) {
    float top = kNothing;
    for (int64_t block = 0; block < blocks.count(); ++block) top = std::max(top, blocks.maxima[block * rows + row]);
    found->typed_data()[row] = static_cast<int32_t>(blocks.first_not_below(top, row));
  }
  return ffi::Error::Success();
}

// Returns the `n`-th largest of the numbers, and reorders them.
float nth_of(std::vector<float>& numbers, int64_t n) {
  std::nth_element(numbers.begin(), numbers.begin() + (n - 1), numbers.end(), std::greater<float>());
  return numbers[n - 1];
}

// Returns the `n`-th largest number of a row. At least `n` numbers reach the `n`-th largest maximum, so the result does
// too, and is in one of the few blocks whose maxima reach it.
float nth_largest_of(const Blocks& blocks, int64_t row, int64_t n) {
  std::vector<float> numbers;
  float bound = kNothing;
  if (n <= blocks.count()) {
    for (int64_t block = 0; block < blocks.count(); ++block)
      numbers.push_back(blocks.maxima[block * blocks.rows + row]);
    bound = nth_of(numbers, n);
    numbers.clear();
  }
  blocks.reaching(bound, row, [&](int64_t, float number) { numbers.push_back(number); });
  return static_cast<int64_t>(numbers.size()) < n ? kNothing : nth_of(numbers, n);  // the rest are NaN
}

ffi::Error nth_largest(ffi::ThreadPool pool, Matrix x, Ids n, ffi::Result<Vector> found) {
  const int64_t tokens = x.dimensions()[0], rows = x.dimensions()[1];
  if (!of_rows(rows, n, *found))
    return ffi::Error::InvalidArgument("a search for large numbers got arrays of shapes that do not fit together");
  std::vector<int64_t> sought;
  for (int64_t row = 0; row < rows; ++row)
    if (n.typed_data()[row] > 0 && n.typed_data()[row] < tokens) sought.push_back(row);
  std::fill_n(found->typed_data(), rows, kNothing);
  if (sought.empty()) return ffi::Error::Success();
  const Blocks blocks(pool, x);
  parallel_for(pool, static_cast<int64_t>(sought.size()), [&](int64_t part) {
    const int64_t row = sought[part];
    found->typed_data()[row] = nth_largest_of(blocks, row, n.typed_data()[row]);
  });
  return ffi::Error::Success();
}

ffi::Error count_above(ffi::ThreadPool pool, Matrix x, Vector bound, ffi::Result<Ids> counts) {
  const int64_t rows = x.dimensions()[1];
  if (!of_rows(rows, bound, *counts))
    return ffi::Error::InvalidArgument("a count of large numbers got arrays of shapes that do not fit together");
  const Blocks blocks(pool, x);
  parallel_for(pool, rows, [&](int64_t row) {
    const float least = bound.typed_data()[row];
    int32_t count = 0;
    blocks.reaching(least, row, [&](int64_t, float number) { count += number > least; });
    counts->typed_data()[row] = count;
  });
  return ffi::Error::Success();
}

ffi::Error adjust(ffi::ThreadPool pool, Matrix x, Matrix bias, Marks marks, Ids owners, Vector repetition,
                  Vector frequency, Vector presence, Ids too_early, ffi::Result<Matrix> y) {
  const int64_t tokens = x.dimensions()[0], rows = x.dimensions()[1], slots = bias.dimensions()[0];
  if (bias.dimensions()[1] != x.dimensions()[0] || !(marks.dimensions() == bias.dimensions()) ||
      !(y->dimensions() == x.dimensions()) || !of_rows(rows, owners, repetition, frequency, presence, too_early))
    return ffi::Error::InvalidArgument("an adjustment got arrays of shapes that do not fit together");
  for (int64_t row = 0; row < rows; ++row)
    if (owners.typed_data()[row] >= slots)
      return ffi::Error::InvalidArgument("an adjustment got a row of a slot that is not there");
  const Adjust all{x.typed_data(),
                   bias.typed_data(),
                   marks.typed_data(),
                   owners.typed_data(),
                   repetition.typed_data(),
                   frequency.typed_data(),
                   presence.typed_data(),
                   too_early.typed_data(),
                   y->typed_data(),
                   tokens,
                   rows};
  for_tokens(pool, tokens, [&](int64_t, int64_t first, int64_t count) { kernels()->adjust(all, first, count); });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace rekindle

REKINDLE_HANDLER(rekindle_mass, rekindle::mass,
                 xla::ffi::Ffi::Bind()
                     .Ctx<xla::ffi::ThreadPool>()
                     .Arg<rekindle::Matrix>()
                     .Arg<rekindle::Vector>()
                     .Arg<rekindle::Vector>()
                     .Arg<rekindle::Vector>()
                     .Ret<rekindle::Vector>());

REKINDLE_HANDLER(rekindle_draw, rekindle::draw,
                 xla::ffi::Ffi::Bind()
                     .Ctx<xla::ffi::ThreadPool>()
                     .Arg<rekindle::Matrix>()
                     .Arg<rekindle::Words>()
                     .Arg<rekindle::Words>()
                     .Arg<rekindle::Vector>()
                     .Arg<rekindle::Vector>()
                     .Arg<rekindle::Vector>()
                     .Ret<rekindle::Ids>());

REKINDLE_HANDLER(rekindle_argmax, rekindle::argmax,
                 xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>().Arg<rekindle::Matrix>().Ret<rekindle::Ids>());

REKINDLE_HANDLER(rekindle_nth_largest, rekindle::nth_largest,
                 xla::ffi::Ffi::Bind()
                     .Ctx<xla::ffi::ThreadPool>()
                     .Arg<rekindle::Matrix>()
                     .Arg<rekindle::Ids>()
                     .Ret<rekindle::Vector>());

REKINDLE_HANDLER(rekindle_count_above, rekindle::count_above,
                 xla::ffi::Ffi::Bind()
                     .Ctx<xla::ffi::ThreadPool>()
                     .Arg<rekindle::Matrix>()
                     .Arg<rekindle::Vector>()
                     .Ret<rekindle::Ids>());

REKINDLE_HANDLER(rekindle_adjust, rekindle::adjust,
                 xla::ffi::Ffi::Bind()
                     .Ctx<xla::ffi::ThreadPool>()
                     .Arg<rekindle::Matrix>()
                     .Arg<rekindle::Matrix>()
                     .Arg<rekindle::Marks>()
                     .Arg<rekindle::Ids>()
                     .Arg<rekindle::Vector>()
                     .Arg<rekindle::Vector>()
                     .Arg<rekindle::Vector>()
                     .Arg<rekindle::Ids>()
                     .Ret<rekindle::Matrix>());
