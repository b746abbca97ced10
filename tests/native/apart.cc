// Compares the two forms of bfloat16 with AVX-512, bit for bit: linear layers and attention by VDPBF16PS and by FMAs.
#include "apart.h"

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace {

std::mt19937 source(1);

// Returns a number of any size down to denormal ones, sometimes a zero, an infinity or a NaN.
float number() {
  static std::uniform_int_distribution<uint32_t> bits;
  const uint32_t kind = bits(source) % 40, sign = bits(source) & 0x80000000u, fraction = bits(source) & 0x7fffffu;
  const uint32_t exponent = kind == 0 ? 0 : kind == 1 ? 255 : kind < 6 ? bits(source) % 100 : 107 + bits(source) % 40;
  const uint32_t whole = kind == 2 ? sign : sign | exponent << 23 | (kind == 1 && sign ? 0 : fraction);
  float x;
  std::memcpy(&x, &whole, sizeof x);
  return x;
}

// Returns a number of ordinary size.
float plain() { return std::normal_distribution<float>()(source); }

std::vector<float> some(int64_t count, float (*of)()) {
  std::vector<float> all(count);
  for (float& x : all) x = of();
  return all;
}

std::vector<uint16_t> halves(int64_t count, float (*of)()) {
  std::vector<uint16_t> all(count);
  for (uint16_t& x : all) x = narrow(of());
  return all;
}

// Returns whether two results have the same bits; a NaN may have any.
bool same(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (!(std::isnan(a[i]) && std::isnan(b[i])) && std::memcmp(&a[i], &b[i], sizeof(float))) return false;
  return true;
}

bool same_layers(int64_t rows, int64_t in, int64_t out, float (*of)()) {
  const int64_t panels = (out + kPanel - 1) / kPanel;
  const auto x = some(rows * in, of), onto = some(rows * out, of);
  auto weight = halves(panels * (in + 1) / 2 * 2 * kPanel, of);
  std::vector<float> scratch(rekindle::linear_scratch(rows, in) / sizeof(float)), first(rows * out), second(rows * out);
  const LinearPart part{0, rows, 0, panels, scratch.data(), false};
  const Linear all{x.data(), weight.data(), onto.data(), first.data(), rows, in, out, false};
  Linear again = all;
  again.y = second.data();
  flushed_linear<Pairs>(all, part);
  flushed_linear<Apart<true>>(again, part);
  return same(first, second);
}

bool same_attention(int64_t queries, int64_t context, int64_t head_dim, int64_t window, float (*of)()) {
  constexpr int64_t kPage = 16, kHeads = 6, kGroup = 3;
  const int64_t pages = (context + queries + kPage - 1) / kPage;
  const auto q = some(queries * kHeads * head_dim, plain);
  const auto pool = halves(pages * 2 * (kHeads / kGroup) * kPage * head_dim, of);
  std::vector<int32_t> table(pages);
  for (int64_t page = 0; page < pages; ++page) table[page] = static_cast<int32_t>(pages - 1 - page);
  std::vector<float> scratch(rekindle::attention_scratch(queries * kGroup, head_dim)), first(q.size()),
      second(q.size());
  const Attention all{q.data(), pool.data(), first.data(), pages,  2, kHeads / kGroup, kPage, head_dim, kHeads,
                      head_dim, pages,       0.125f,       window, 0, nullptr};
  Attention again = all;
  again.out = second.data();
  for (int64_t head = 0; head < kHeads / kGroup; ++head) {
    const AttentionPart part{table.data(), 0, queries, head, context, nullptr, scratch.data(), 0, nullptr, nullptr};
    const NoDenormals mode;
    attend<Paired>(all, part);
    attend<Swapped>(again, part);
  }
  return same(first, second);
}

}  // namespace

int main() {
  int layers = 0, attentions = 0, different = 0;
  for (float (*of)() : {plain, number})
    for (int64_t rows : {1, 2, 3, 11, 12, 13, 37, 96})
      for (auto [in, out] : {std::pair<int64_t, int64_t>{576, 96}, {33, 40}, {50, 32}, {1600, 33}}) {
        ++layers;
        different += !same_layers(rows, in, out, of);
      }
  for (float (*of)() : {plain, number})
    for (int64_t queries : {1, 2, 5, 40})
      for (int64_t context : {0, 1, 63, 150, 700})
        for (int64_t head_dim : {64, 48, 33})
          for (int64_t window : {0, 37}) {
            ++attentions;
            different += !same_attention(queries, context, head_dim, window, of);
          }
  std::printf("%d of %d layers and %d attentions differ\n", different, layers, attentions);
  return different ? 1 : 0;
}
