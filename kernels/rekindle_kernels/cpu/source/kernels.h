// The kernels of one instruction set, as a table of functions; the tables are chosen from when the library is loaded.
#pragma once

#include <cstdint>

namespace rekindle {

constexpr int64_t kPanel = 32;  // outputs of a packed weight that lie together
constexpr int64_t kRows = 96;   // rows of a part of a linear layer at most (48 read the weights more often: 5 % slower)

// One linear layer: y = x @ weight.T, with float32 sums, or y = onto + x @ weight.T.
//
// The weight is packed in panels of `kPanel` outputs: float32 as [panel][in][32], bfloat16 as [panel][in / 2][32][2].
// Outputs and inputs are padded with zeros.
struct Linear {
  const float* x;      // [rows][in]
  const void* weight;  // float or bfloat16, packed
  const float* onto;   // [rows][out], or null
  float* y;            // [rows][out], or [out][rows] of columns
  int64_t rows, in, out;
  bool columns;
};

// A part of a linear layer: some rows of some panels.
struct LinearPart {
  int64_t first_row, rows, first_panel, panels;
  void* scratch;     // room for `linear_scratch` bytes
  bool interleaved;  // whether scratch is as another part with these rows left it
};

// Returns how many bytes of scratch a part of a linear layer needs.
static inline int64_t linear_scratch(int64_t rows, int64_t in) { return (rows * (in + 1) + 32) * 4; }

// Attention sums over positions in an order that depends on the position alone: tiles of 64 one after the other, and
// segments of 512 that are added up in order. So a query's bits do not depend on what is computed beside it, and a long
// context can be shared out over threads.
constexpr int64_t kTile = 64;
constexpr int64_t kSegment = 512;

// Attention over a pool of pages, [pages][sides][kv_heads][page_size][head_dim]: keys and values, or keys that are
// values too.
struct Attention {
  const float* q;     // [queries][heads][head_dim]
  const void* pages;  // float or bfloat16
  float* out;         // like q
  int64_t pool, sides, kv_heads, page_size, head_dim, heads;
  int64_t table_width;  // pages in a row of the table
  float scale;
  int64_t window;      // 0 for all positions
  float soft_cap;      // 0 for none
  const float* sinks;  // [heads], the score of a position whose values are zeros, or null
};

// A part of an attention: adjacent queries of one sequence, for the heads that share a key-value head.
struct AttentionPart {
  const int32_t* table;  // the sequence's row
  int64_t first_query, queries;
  int64_t kv_head;
  int64_t position;           // of the first query; it sees itself and what is before it
  float* scratch;             // room for `attention_scratch` numbers
  int64_t segment;            // if `states` is not null: the only segment that is computed
  float* states;              // [group][attention_state], to be combined later
  const AttentionPart* next;  // what this thread may compute after it, whose first keys it fetches, or null
};

// Returns the size of one query head's unfinished sums.
static inline int64_t attention_state(int64_t head_dim) { return (head_dim + 15) / 16 * 16 + 32; }

// Returns how many floats of scratch a part of so many query heads needs.
static inline int64_t attention_scratch(int64_t heads, int64_t head_dim) {
  return heads * (head_dim + 2 * attention_state(head_dim)) + head_dim * kTile;
}

// y = x / sqrt(mean(x * x) + eps) * weight, row by row.
struct Norm {
  const float *x, *weight;  // [rows][features] and [features]
  float* y;
  int64_t features;
  float eps;
};

// Queries and keys are turned by the angles of their token, and parted; values go beside the keys.
struct Rotation {
  const float *x, *cos, *sin;  // [tokens][heads + 2 * kv_heads][head_dim], [tokens][turned] twice
  float *q, *kv;               // [tokens][heads][head_dim], [tokens][2][kv_heads][head_dim]
  int64_t heads, kv_heads, head_dim;
  int64_t turned;  // pairs of a head that turn
};

// y = silu(x[:features]) * x[features:], row by row.
struct Gate {
  const float* x;  // [rows][2 * features]
  float* y;        // [rows][features]
  int64_t features;
};

// Sums of exp((x - largest) / temperature) over the tokens of each row whose x is at least `least`.
//
// They are added token by token in parts of `kTokens`, and those in order.
struct Mass {
  const float *x, *largest, *temperature, *least;  // [tokens][rows], and [rows] each
  int64_t tokens, rows;
};
constexpr int64_t kTokens = 2048;

// The token of each row with the largest sum of -(largest - x) / temperature and its noise, of those whose x is at
// least `least`; the first of equal ones.
struct Draw {
  const float* x;                              // [tokens][rows]
  const uint32_t *first, *second;              // the key of each row's noise, [rows]
  const float *largest, *temperature, *least;  // [rows]
  int64_t tokens, rows;
};

// Logits changed by what each slot has of its tokens.
struct Adjust {
  const float *x, *bias;  // [tokens][rows], [slots][tokens]
  const int32_t* marks;   // [slots][tokens]: 1 in the prompt, 2 an end, and 4 for each time that it was generated
  const int32_t* owners;  // [rows], the slot of each; below 0 nothing changes
  const float *repetition, *frequency, *presence;  // [rows]
  const int32_t* too_early;                        // [rows], whether ends are banned
  float* y;                                        // [tokens][rows]
  int64_t tokens, rows;
};

constexpr int64_t kBlock = 64;  // tokens whose maximum stands for them while the largest are sought

struct Kernels {
  const char* name;
  void (*linear_f32)(const Linear&, const LinearPart&);
  void (*linear_bf16)(const Linear&, const LinearPart&);
  void (*rms_norm)(const Norm&, int64_t first, int64_t rows);
  void (*rotate)(const Rotation&, int64_t first, int64_t tokens);
  void (*gate)(const Gate&, int64_t first, int64_t rows);
  // Sums one part of the tokens: [rows].
  void (*mass)(const Mass&, int64_t first, int64_t tokens, float* sums);
  // Finds the best of one part of the tokens: its score and its place, [rows] each.
  void (*draw)(const Draw&, int64_t first, int64_t tokens, float* scores, int32_t* places);
  // Finds the largest number of each row in some blocks of `kBlock` tokens: [blocks][rows]. A NaN counts as infinity.
  void (*maxima)(const float* x, int64_t tokens, int64_t rows, int64_t first, int64_t blocks, float* maxima);
  void (*adjust)(const Adjust&, int64_t first, int64_t tokens);
  void (*attend_f32)(const Attention&, const AttentionPart&);
  void (*attend_bf16)(const Attention&, const AttentionPart&);
  // Adds up the states of [segments][group] query heads, and writes the result of one query of these heads.
  void (*combine)(const Attention&, const AttentionPart&, int64_t segments);
};

// Returns the kernels for the best instruction set of this machine, or null if it has none of those compiled in.
const Kernels* kernels();

}  // namespace rekindle
