// XLA handlers of recurrent layers: convolutions and recurrences over the states of slots, which are updated in place.
//
// Tokens come in blocks; a decode row is a block of one token.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels.h"
#include "later.h"

namespace rekindle {
namespace {

using Cube = ffi::Buffer<ffi::F32, 3>;
using Heads = ffi::Buffer<ffi::F32, 4>;
using Runs = std::vector<std::vector<Stretch>>;  // the stretches of each slot, in order

constexpr int64_t kSmall = 64 * 1024;  // numbers below which waking another thread takes longer

// The blocks of a call, and the slot of each.
struct Blocks {
  const int32_t *slots, *starts, *counts;
  int64_t blocks, tokens;  // tokens of a block, with its padding
  int64_t states;          // slots; the last one is for padding

  Blocks(Ids slots, Ids starts, Ids counts, int64_t tokens, int64_t states)
      : slots(slots.typed_data()),
        starts(starts.typed_data()),
        counts(counts.typed_data()),
        blocks(slots.dimensions()[0]),
        tokens(tokens),
        states(states) {}

  // Returns the real tokens of a block; none of a block outside the slots.
  int64_t real(int64_t block) const {
    return slots[block] < 0 || slots[block] >= states - 1 ? 0 : std::clamp<int64_t>(counts[block], 0, tokens);
  }

  Runs runs() const {
    Runs runs;
    std::vector<int64_t> places(std::max<int64_t>(states, 0), -1);
    for (int64_t block = 0; block < blocks; ++block) {
      if (real(block) == 0) continue;
      int64_t& place = places[slots[block]];
      if (place < 0) {
        place = runs.size();
        runs.emplace_back();
      }
      std::vector<Stretch>& run = runs[place];
      const Stretch next{slots[block], block * tokens, real(block), starts[block] == 0};
      if (!run.empty() && !next.fresh && run.back().first_token + run.back().tokens == next.first_token)
        run.back().tokens += next.tokens;
      else
        run.push_back(next);
    }
    return runs;
  }

  // Writes zeros for the padding, `width` numbers for each token; returns the number of real tokens.
  int64_t clear_padding(float* result, int64_t width) const {
    int64_t all = 0;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t used = real(block);
      std::memset(result + (block * tokens + used) * width, 0, (tokens - used) * width * sizeof(float));
      all += used;
    }
    return all;
  }
};

// Calls `body(stretch, part)` for each part of each slot, with the slot's stretches in order. `numbers` is the size of
// the whole work.
template <typename Body>
ffi::Future for_slots(ffi::ThreadPool& pool, Runs runs, int64_t parts, int64_t numbers, Body body) {
  const int64_t count = runs.size() * parts;
  auto one = [=, all = std::make_shared<const Runs>(std::move(runs))](int64_t i) {
    for (const Stretch& stretch : (*all)[i / parts]) body(stretch, i % parts);
  };
  if (numbers >= kSmall) return in_parts(pool, count, std::move(one));
  for (int64_t i = 0; i < count; ++i) one(i);
  return done();
}

bool of_blocks(int64_t blocks, const Ids& slots, const Ids& starts, const Ids& counts) {
  return slots.dimensions()[0] == blocks && starts.dimensions()[0] == blocks && counts.dimensions()[0] == blocks;
}

ffi::Error in_place(const void* states, const void* updated) {
  if (states == updated) return ffi::Error::Success();
  return ffi::Error::Internal("states are updated in place, but the program gave the result another place");
}

const float* given(const Vector& optional) { return optional.element_count() == 0 ? nullptr : optional.typed_data(); }

ffi::Future convolve(ffi::ThreadPool pool, Cube states, Cube x, Matrix weight, Vector bias, Ids slots, Ids starts,
                     Ids counts, ffi::Result<Cube> updated, ffi::Result<Cube> y) {
  const int64_t channels = x.dimensions()[2], taps = weight.dimensions()[1], biases = bias.element_count();
  if (taps < 2 || taps > kTaps || weight.dimensions()[0] != channels || states.dimensions()[1] != taps - 1 ||
      states.dimensions()[2] != channels || (biases != 0 && biases != channels) ||
      !(y->dimensions() == x.dimensions()) || !of_blocks(x.dimensions()[0], slots, starts, counts))
    return invalid("a convolution got arrays of shapes that do not fit together");
  if (auto error = in_place(states.typed_data(), updated->typed_data()); error.failure()) return failed(error);
  const Convolution all{
      x.typed_data(), weight.typed_data(), given(bias), updated->typed_data(), y->typed_data(), channels, taps};
  const Blocks blocks(slots, starts, counts, x.dimensions()[1], states.dimensions()[0]);
  const int64_t tokens = blocks.clear_padding(all.y, channels);
  return for_slots(pool, blocks.runs(), (channels + kChannels - 1) / kChannels, tokens * channels,
                   [=](const Stretch& stretch, int64_t i) { kernels()->convolve(all, stretch, i * kChannels); });
}

ffi::Future recur(ffi::ThreadPool pool, Heads states, Heads q, Heads k, Heads v, Heads decay, Vector beta, Ids slots,
                  Ids starts, Ids counts, ffi::Result<Heads> updated, ffi::Result<Heads> o) {
  const int64_t blocks = v.dimensions()[0], block_tokens = v.dimensions()[1], heads = v.dimensions()[2];
  const int64_t values = v.dimensions()[3], key_heads = q.dimensions()[2], keys = q.dimensions()[3];
  const int64_t decays = decay.dimensions()[3], betas = beta.element_count();
  const auto lead = [=](const Heads& x) { return x.dimensions()[0] == blocks && x.dimensions()[1] == block_tokens; };
  if (!lead(q) || !(k.dimensions() == q.dimensions()) || key_heads < 1 || heads % key_heads != 0 || !lead(decay) ||
      decay.dimensions()[2] != heads || (decays != 1 && decays != keys) ||
      (betas != 0 && betas != blocks * block_tokens * heads) || states.dimensions()[1] != heads ||
      states.dimensions()[2] != keys || states.dimensions()[3] != values || !(o->dimensions() == v.dimensions()) ||
      !of_blocks(blocks, slots, starts, counts))
    return invalid("a recurrence got arrays of shapes that do not fit together");
  if (auto error = in_place(states.typed_data(), updated->typed_data()); error.failure()) return failed(error);
  const Recurrence all{q.typed_data(),  k.typed_data(),
                       v.typed_data(),  decay.typed_data(),
                       given(beta),     updated->typed_data(),
                       o->typed_data(), key_heads,
                       heads,           keys,
                       values,          decays};
  const Blocks of(slots, starts, counts, block_tokens, states.dimensions()[0]);
  const int64_t tokens = of.clear_padding(all.o, heads * values), tiles = (values + kColumns - 1) / kColumns;
  return for_slots(pool, of.runs(), heads * tiles, tokens * heads * keys * values,
                   [=](const Stretch& stretch, int64_t i) {
                     float* room = scratch(recurrence_scratch(keys));
                     kernels()->recur(all, stretch, i / tiles, i % tiles * kColumns, room);
                   });
}

}  // namespace
}  // namespace rekindle

REKINDLE_HANDLER(rekindle_convolve, rekindle::convolve,
                 xla::ffi::Ffi::Bind()
                     .Ctx<xla::ffi::ThreadPool>()
                     .Arg<rekindle::Cube>()
                     .Arg<rekindle::Cube>()
                     .Arg<rekindle::Matrix>()
                     .Arg<rekindle::Vector>()
                     .Arg<rekindle::Ids>()
                     .Arg<rekindle::Ids>()
                     .Arg<rekindle::Ids>()
                     .Ret<rekindle::Cube>()
                     .Ret<rekindle::Cube>());

REKINDLE_HANDLER(rekindle_recur, rekindle::recur,
                 xla::ffi::Ffi::Bind()
                     .Ctx<xla::ffi::ThreadPool>()
                     .Arg<rekindle::Heads>()
                     .Arg<rekindle::Heads>()
                     .Arg<rekindle::Heads>()
                     .Arg<rekindle::Heads>()
                     .Arg<rekindle::Heads>()
                     .Arg<rekindle::Vector>()
                     .Arg<rekindle::Ids>()
                     .Arg<rekindle::Ids>()
                     .Arg<rekindle::Ids>()
                     .Ret<rekindle::Heads>()
                     .Ret<rekindle::Heads>());
