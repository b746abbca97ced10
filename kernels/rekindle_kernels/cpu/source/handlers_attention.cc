// XLA handlers of attention over pages.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kernels.h"
#include "later.h"

namespace rekindle {
namespace {

using Indices = ffi::Buffer<ffi::S32, 1>;
using Table = ffi::Buffer<ffi::S32, 2>;
using Sinks = ffi::Buffer<ffi::F32, 1>;

constexpr int64_t kQueriesTogether = 32;  // queries of a part: they share the transposition of a tile's keys
constexpr int64_t kSmall = 32 * 1024;     // products below which waking another thread takes longer
constexpr int64_t kPartsAThread = 4;      // parts per thread below which contexts are split

// A run: adjacent queries of one sequence.
struct Run {
  int64_t sequence, first_query, queries, position;
  const int32_t* until;  // see `AttentionPart`
};

// One attention with all its runs.
class Call {
 public:
  Call(const Attention& all, Table table, ffi::DataType type)
      : all_(all),
        table_(table.typed_data()),
        sequences_(table.dimensions()[0]),
        room_(all.table_width * all.page_size),
        group_(all.heads / all.kv_heads),
        attend_(type == ffi::F32  ? kernels()->attend_f32
                : type == ffi::S8 ? kernels()->attend_i8
                                  : kernels()->attend_bf16) {}

  void add(const Run& run) { runs_.push_back(run); }

  // Computes all runs, and keeps the call alive until then.
  static ffi::Future compute(std::shared_ptr<const Call> call, ffi::ThreadPool& pool) {
    int64_t work = 0;
    bool divisible = true;
    for (const Run& run : call->runs_) {
      const auto [first, last] = call->seen(run);
      work += std::max<int64_t>(0, last - first) * run.queries * call->all_.heads * call->all_.head_dim;
      divisible &= run.queries == 1;
    }
    const int64_t runs = call->runs_.size(), kv_heads = call->all_.kv_heads;
    const int64_t wanted = kPartsAThread * pool.num_threads();
    if (divisible && work >= kSmall && runs * kv_heads < wanted) return compute_split(std::move(call), pool);
    const int64_t count = runs * kv_heads;
    const auto part_at = [=](int64_t i) {
      return call->part_of(call->runs_[runs - 1 - i / kv_heads], i % kv_heads);  // the longest first
    };
    if (work >= kSmall) {
      const int64_t threads = pool.num_threads();
      return in_parts(pool, count, [=](int64_t i) { call->attend(part_at, i, count, threads); });
    }
    for (int64_t i = 0; i < count; ++i) call->attend(part_at, i, count, 1);
    return done();
  }

 private:
  // Returns the positions visible to a run.
  std::pair<int64_t, int64_t> seen(const Run& run) const {
    const int64_t first = all_.window > 0 ? std::max<int64_t>(0, run.position + 1 - all_.window) : 0;
    const int64_t last = run.until ? run.until[run.queries - 1] : run.position + run.queries;
    return {first, std::min(last, room_)};
  }

  // Describes a part, without its scratch.
  AttentionPart part_of(const Run& run, int64_t kv_head) const {
    const int64_t sequence = std::clamp<int64_t>(run.sequence, 0, sequences_ - 1);
    const int32_t* row = table_ + sequence * all_.table_width;
    return {row, run.first_query, run.queries, kv_head, run.position, run.until, nullptr, 0, nullptr, nullptr};
  }

  float* scratch_of(const AttentionPart& part) const {
    return scratch(attention_scratch(part.queries * group_, all_.head_dim));
  }

  // Computes a part. A thread's next part is probably the one `threads` further on.
  template <typename PartAt>
  void attend(const PartAt& part_at, int64_t i, int64_t count, int64_t threads) const {
    const bool more = i + threads < count;
    const AttentionPart next = part_at(more ? i + threads : i);
    AttentionPart part = part_at(i);
    part.scratch = scratch_of(part);
    part.next = more ? &next : nullptr;
    attend_(all_, part);
  }

  // Computes each segment of single queries as a separate part.
  static ffi::Future compute_split(std::shared_ptr<const Call> call, ffi::ThreadPool& pool) {
    struct Piece {
      const Run* run;
      int64_t kv_head, segment;
    };
    std::vector<Piece> pieces;
    const int64_t width = call->all_.heads * call->all_.head_dim;
    for (const Run& run : call->runs_) {
      std::fill_n(call->all_.out + run.first_query * width, width, 0.0f);  // the result without visible positions
      for (int64_t kv_head = 0; kv_head < call->all_.kv_heads; ++kv_head)
        for (auto [first, last] = call->seen(run); first < last; first = (first / kSegment + 1) * kSegment)
          pieces.push_back({&run, kv_head, first / kSegment});
    }
    const int64_t size = call->group_ * attention_state(call->all_.head_dim), count = pieces.size();
    struct Split {
      std::shared_ptr<const Call> call;
      std::vector<Piece> pieces;
      std::unique_ptr<float[]> states;

      AttentionPart part(int64_t i, int64_t size) const {
        AttentionPart part = call->part_of(*pieces[i].run, pieces[i].kv_head);
        part.segment = pieces[i].segment;
        part.states = states.get() + i * size;
        return part;
      }
    };
    const auto split = std::make_shared<const Split>(
        Split{std::move(call), std::move(pieces), std::unique_ptr<float[]>(new float[count * size])});
    const int64_t threads = pool.num_threads();
    const auto part_at = [=](int64_t i) { return split->part(i, size); };
    return in_parts(
        pool, count, [=](int64_t i) { split->call->attend(part_at, i, count, threads); },
        [=] {
          for (int64_t i = 0, next; i < count; i = next) {
            const Piece& piece = split->pieces[i];
            for (next = i;
                 next < count && split->pieces[next].run == piece.run && split->pieces[next].kv_head == piece.kv_head;)
              ++next;
            AttentionPart part = part_at(i);
            part.scratch = split->call->scratch_of(part);
            kernels()->combine(split->call->all_, part, next - i);
          }
        });
  }

  const Attention all_;
  const int32_t* const table_;
  const int64_t sequences_, room_, group_;
  void (*const attend_)(const Attention&, const AttentionPart&);
  std::vector<Run> runs_;
};

// Describes an attention with q of (..., heads, head_dim).
ffi::ErrorOr<Attention> describe(ffi::Buffer<ffi::F32>& q, ffi::AnyBuffer& pages, Table& table, Sinks& sinks,
                                 float scale, int64_t window, float soft_cap, ffi::Result<ffi::Buffer<ffi::F32>>& out) {
  const auto shape = q.dimensions(), pool = pages.dimensions();
  if (shape.size() < 3 || pool.size() != 5 || pool[1] < 1 || pool[1] > 2 || !(out->dimensions() == shape))
    return ffi::Unexpected(
        ffi::Error::InvalidArgument("attention expects q (..., heads, head_dim), a result like it, and "
                                    "pages (pages, 1 or 2, kv_heads, page_size, width)"));
  const auto type = pages.element_type();
  const int64_t heads = shape[shape.size() - 2], head_dim = shape[shape.size() - 1];
  const int64_t width = type == ffi::S8 ? scaled_width(head_dim) : head_dim;
  if (pool[0] < 1 || pool[2] < 1 || pool[3] < 1 || pool[4] != width || heads % pool[2] != 0)
    return ffi::Unexpected(
        ffi::Error::InvalidArgument("attention expects pages of the queries' head_dim, with at least "
                                    "one page and kv_heads that divide the queries' heads"));
  const int64_t sunk = sinks.dimensions()[0];
  if (sunk != 0 && sunk != heads)
    return ffi::Unexpected(ffi::Error::InvalidArgument("attention expects a sink for each head, or none"));
  if (type != ffi::F32 && type != ffi::BF16 && type != ffi::U16 && type != ffi::S8)
    return ffi::Unexpected(ffi::Error::InvalidArgument("attention expects pages of float32, bfloat16 or int8"));
  if (kernels() == nullptr) return ffi::Unexpected(ffi::Error::Internal("no kernels were built for this processor"));
  return Attention{q.typed_data(),
                   pages.untyped_data(),
                   out->typed_data(),
                   pool[0],
                   pool[1],
                   pool[2],
                   pool[3],
                   head_dim,
                   heads,
                   width,
                   table.dimensions()[1],
                   scale,
                   window,
                   soft_cap,
                   sunk ? sinks.typed_data() : nullptr};
}

ffi::Future attend_rows(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> q, ffi::AnyBuffer pages, Table table,
                        Indices visible, Sinks sinks, ffi::Result<ffi::Buffer<ffi::F32>> out, float scale,
                        int64_t window, float soft_cap) {
  const auto all = describe(q, pages, table, sinks, scale, window, soft_cap, out);
  if (all.has_error()) return failed(all.error());
  const int64_t rows = q.dimensions()[0];
  if (q.dimensions().size() != 3 || table.dimensions()[0] != rows || visible.dimensions()[0] != rows)
    return invalid(
        "attention of rows expects q (rows, heads, head_dim), as many rows of the page "
        "table, and as many visible lengths");
  if (rows == 0) return done();
  const auto call = std::make_shared<Call>(*all, table, pages.element_type());
  for (int64_t row = 0; row < rows; ++row) call->add({row, row, 1, int64_t{visible.typed_data()[row]} - 1, nullptr});
  return Call::compute(call, pool);
}

// Computes attention of blocks; `until` is null for causal attention.
ffi::Future attend_runs(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> q, ffi::AnyBuffer pages, Table table,
                        Indices sequence, Indices start, const Indices* until, Sinks sinks,
                        ffi::Result<ffi::Buffer<ffi::F32>> out, float scale, int64_t window, float soft_cap) {
  const auto all = describe(q, pages, table, sinks, scale, window, soft_cap, out);
  if (all.has_error()) return failed(all.error());
  const int64_t blocks = q.dimensions()[0], tokens = q.dimensions()[1];
  if (q.dimensions().size() != 4 || sequence.dimensions()[0] != blocks || start.dimensions()[0] != blocks)
    return invalid(
        "attention of blocks expects q (blocks, block_tokens, heads, head_dim), and a "
        "sequence and a start of each block");
  if (until && until->dimensions()[0] != blocks * tokens)
    return invalid("attention of blocks expects an end of the visible positions of each token");
  if (q.element_count() == 0) return done();
  if (table.dimensions()[0] < 1) return invalid("attention of blocks expects a page table with a row");
  std::fill_n(out->typed_data(), out->element_count(), 0.0f);
  const auto call = std::make_shared<Call>(*all, table, pages.element_type());
  Run run{0, 0, 0, 0, nullptr};
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t owner = sequence.typed_data()[block], position = start.typed_data()[block];
    if (position < 0) continue;
    const bool adjacent = run.queries > 0 && owner == run.sequence && block * tokens == run.first_query + run.queries &&
                          position == run.position + run.queries && run.queries + tokens <= kQueriesTogether;
    if (adjacent) {
      run.queries += tokens;
      continue;
    }
    if (run.queries > 0) call->add(run);
    run = {owner, block * tokens, tokens, position, until ? until->typed_data() + block * tokens : nullptr};
  }
  if (run.queries > 0) call->add(run);
  return Call::compute(call, pool);
}

ffi::Future attend_blocks(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> q, ffi::AnyBuffer pages, Table table,
                          Indices sequence, Indices start, Sinks sinks, ffi::Result<ffi::Buffer<ffi::F32>> out,
                          float scale, int64_t window, float soft_cap) {
  return attend_runs(pool, q, pages, table, sequence, start, nullptr, sinks, out, scale, window, soft_cap);
}

ffi::Future attend_blocks_until(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> q, ffi::AnyBuffer pages, Table table,
                                Indices sequence, Indices start, Indices until, Sinks sinks,
                                ffi::Result<ffi::Buffer<ffi::F32>> out, float scale, int64_t window, float soft_cap) {
  return attend_runs(pool, q, pages, table, sequence, start, &until, sinks, out, scale, window, soft_cap);
}

}  // namespace
}  // namespace rekindle

REKINDLE_HANDLER(rekindle_attend_rows, rekindle::attend_rows,
                 xla::ffi::Ffi::Bind()
                     .Ctx<xla::ffi::ThreadPool>()
                     .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                     .Arg<xla::ffi::AnyBuffer>()
                     .Arg<rekindle::Table>()
                     .Arg<rekindle::Indices>()
                     .Arg<rekindle::Sinks>()
                     .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
                     .Attr<float>("scale")
                     .Attr<int64_t>("window")
                     .Attr<float>("soft_cap"));

REKINDLE_HANDLER(rekindle_attend_blocks, rekindle::attend_blocks,
                 xla::ffi::Ffi::Bind()
                     .Ctx<xla::ffi::ThreadPool>()
                     .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                     .Arg<xla::ffi::AnyBuffer>()
                     .Arg<rekindle::Table>()
                     .Arg<rekindle::Indices>()
                     .Arg<rekindle::Indices>()
                     .Arg<rekindle::Sinks>()
                     .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
                     .Attr<float>("scale")
                     .Attr<int64_t>("window")
                     .Attr<float>("soft_cap"));

REKINDLE_HANDLER(rekindle_attend_blocks_until, rekindle::attend_blocks_until,
                 xla::ffi::Ffi::Bind()
                     .Ctx<xla::ffi::ThreadPool>()
                     .Arg<xla::ffi::Buffer<xla::ffi::F32>>()
                     .Arg<xla::ffi::AnyBuffer>()
                     .Arg<rekindle::Table>()
                     .Arg<rekindle::Indices>()
                     .Arg<rekindle::Indices>()
                     .Arg<rekindle::Indices>()
                     .Arg<rekindle::Sinks>()
                     .Ret<xla::ffi::Buffer<xla::ffi::F32>>()
                     .Attr<float>("scale")
                     .Attr<int64_t>("window")
                     .Attr<float>("soft_cap"));
