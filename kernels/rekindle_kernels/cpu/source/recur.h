// Recurrent states by token: the gated delta rule (Yang et al., 2024, arXiv:2412.06464), with decay by key channel
// too (Kimi Linear, 2025, arXiv:2510.26692), and without delta rule Mamba-2 (Dao and Gu, 2024, arXiv:2405.21060).
#pragma once

#include "kernels.h"
#include "softmax.h"
#include "vector.h"

namespace {

// Loads a vector, or its first numbers if fewer are left.
inline Vec up_to(int64_t left, const float* from) { return left < kLanes ? load_first(from, left) : load(from); }

// One head of a recurrence over a stretch: where each token's numbers are, and the factors made from them.
class Head {
 public:
  Head(const rekindle::Recurrence& all, const rekindle::Stretch& part, int64_t head, float* scratch)
      : all_(all), first_(part.first_token), head_(head), key_head_(head / (all.heads / all.key_heads)) {
    const int64_t room = padded(all.keys);
    factors_[0] = scratch;
    factors_[1] = scratch + room;
    decayed_ = scratch + 2 * room;
  }

  const float* q(int64_t token) const { return all_.q + keys_of(token); }
  const float* k(int64_t token) const { return all_.k + keys_of(token); }
  int64_t value_of(int64_t token) const { return ((first_ + token) * all_.heads + head_) * all_.values; }
  float beta(int64_t token) const { return all_.beta[(first_ + token) * all_.heads + head_]; }

  // Computes a token's factors. Those of the token before it remain.
  void prepare(int64_t token) {
    float* factors = factors_[token % 2];
    const float *decay = all_.decay + ((first_ + token) * all_.heads + head_) * all_.decays, *keys = k(token);
    const Vec of_all_rows = exponential(splat(*decay));
    for (int64_t i = 0; i < all_.keys; i += kLanes) {
      const Vec by = all_.decays == 1 ? of_all_rows : exponential(up_to(all_.keys - i, decay + i));
      store(factors + i, by);
      store(decayed_ + i, by * up_to(all_.keys - i, keys + i));
    }
  }

  // Returns the factors of the rows of S.
  const float* factors(int64_t token) const { return factors_[token % 2]; }

  // Returns the keys of the token prepared last, times its factors.
  const float* decayed() const { return decayed_; }

 private:
  int64_t keys_of(int64_t token) const { return ((first_ + token) * all_.key_heads + key_head_) * all_.keys; }

  const rekindle::Recurrence& all_;
  const int64_t first_, head_, key_head_;
  float *factors_[2], *decayed_;
};

// Updates columns of S by one token, and adds up its result. With `Ahead`, it adds up `ahead . S` of the new S too,
// which the delta rule of the next token needs: S is then read once per token.
template <int Width, bool Ahead>
inline __attribute__((always_inline)) void update(float* s, int64_t stride, int64_t keys, const float* factors,
                                                  const float* k, const float* q, const float* ahead,
                                                  const Vec (&d)[Width], Vec (&o)[Width], Vec (&found)[Width]) {
  for (int64_t i = 0; i < keys; ++i, s += stride) {
    const Vec by = splat(factors[i]), key = splat(k[i]), query = splat(q[i]);
#pragma GCC unroll 4
    for (int j = 0; j < Width; ++j) {
      const Vec x = fused(key, d[j], by * load(s + j * kLanes));
      store(s + j * kLanes, x);
      o[j] = fused(query, x, o[j]);
      if constexpr (Ahead) found[j] = fused(splat(ahead[i]), x, found[j]);
    }
  }
}

// Runs a stretch over a few vectors of columns of S, or `some` columns of one vector.
template <int Width>
void run(const rekindle::Recurrence& all, const rekindle::Stretch& part, Head head, float* s, int64_t stride,
         int64_t column, int64_t some) {
  const auto read = [=](const float* from) { return some ? load_first(from, some) : load(from); };
  Vec found[Width] = {};
  head.prepare(0);
  if (all.beta != nullptr)
    for (int64_t i = 0; i < all.keys; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < Width; ++j)
        found[j] = fused(splat(head.decayed()[i]), load(s + i * stride + j * kLanes), found[j]);
  for (int64_t token = 0; token < part.tokens; ++token) {
    const int64_t place = head.value_of(token) + column;
    Vec d[Width], o[Width] = {};
#pragma GCC unroll 4
    for (int j = 0; j < Width; ++j) {
      d[j] = read(all.v + place + j * kLanes);
      if (all.beta != nullptr) d[j] = splat(head.beta(token)) * (d[j] - found[j]);
      found[j] = Vec{};
    }
    const float *factors = head.factors(token), *k = head.k(token), *q = head.q(token);
    const bool more = token + 1 < part.tokens;
    if (more) head.prepare(token + 1);
    if (more && all.beta != nullptr)
      update<Width, true>(s, stride, all.keys, factors, k, q, head.decayed(), d, o, found);
    else
      update<Width, false>(s, stride, all.keys, factors, k, q, nullptr, d, o, found);
#pragma GCC unroll 4
    for (int j = 0; j < Width; ++j)
      if (some)
        store_first(all.o + place, o[j], some);
      else
        store(all.o + place + j * kLanes, o[j]);
  }
}

void recur(const rekindle::Recurrence& all, const rekindle::Stretch& part, int64_t head, int64_t first_column,
           float* scratch) {
  const int64_t end = least(first_column + rekindle::kColumns, all.values),
                bytes = (end - first_column) * sizeof(float);
  float* s = all.states + (part.slot * all.heads + head) * all.keys * all.values;
  for (int64_t i = 0; i < all.keys && part.fresh; ++i) std::memset(s + i * all.values + first_column, 0, bytes);
  const Head of(all, part, head, scratch);
  int64_t column = first_column;
  for (; column + 4 * kLanes <= end; column += 4 * kLanes) run<4>(all, part, of, s + column, all.values, column, 0);
  for (; column + kLanes <= end; column += kLanes) run<1>(all, part, of, s + column, all.values, column, 0);
  if (const int64_t some = end - column; some > 0) {
    float* copy = scratch + 3 * padded(all.keys);
    for (int64_t i = 0; i < all.keys; ++i) store(copy + i * kLanes, load_first(s + i * all.values + column, some));
    run<1>(all, part, of, copy, kLanes, column, some);
    for (int64_t i = 0; i < all.keys; ++i) store_first(s + i * all.values + column, load(copy + i * kLanes), some);
  }
}

}  // namespace
