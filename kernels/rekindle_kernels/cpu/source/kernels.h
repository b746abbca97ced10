// The kernels of one instruction set, as a table of functions; a table is chosen when the library is loaded.
#pragma once

#include <cstdint>

namespace rekindle {

constexpr int64_t kPanel = 32;  // outputs in a panel of a packed weight
constexpr int64_t kRows = 96;   // the most rows of a part of a linear layer (48 read weights more often: 5 % slower)

// One linear layer: y = x @ weight.T, with float32 sums, or y = onto + x @ weight.T.
//
// The weight is packed in panels of `kPanel` outputs: float32 as [panel][in][32], bfloat16 as [panel][in / 2][32][2].
// Outputs and inputs are padded with zeros.
struct Linear {
  const float* x;      // [rows][in]
  const void* weight;  // float or bfloat16, packed
  const float* onto;   // [rows][out], or null; if it is `y`, the sums begin with its numbers
  float* y;            // [rows][out], or [out][rows] of columns
  int64_t rows, in, out;
  bool columns;
};

// A part of a linear layer: some rows of some panels.
struct LinearPart {
  int64_t first_row, rows, first_panel, panels;
  void* scratch;     // room for `linear_scratch` bytes
  bool interleaved;  // whether scratch already has these rows, from another part
};

// Returns the bytes of scratch for a part of a linear layer.
static inline int64_t linear_scratch(int64_t rows, int64_t in) { return (rows * (in + 1) + 32) * 4; }

// Rows of a weight in quantized blocks of one kind, a number below `kStoredKinds` (stored.h).
struct Run {
  int64_t kind;
  int64_t groups;  // groups of 32 inputs in a block
  int64_t first_output, outputs;
  int64_t first_panel, panels;  // panels are counted over all runs
  int64_t offset;               // in bytes
};

// A linear layer over a weight in quantized blocks. `x` is rounded to integers up to `most` by row and group of 32
// inputs, or not at all if it is 0 or for codes that are floats. Sums of products of integers are exact, and groups are
// added in order. If it is negative, `x` and the numbers of the blocks are rounded to bfloat16.
struct StoredLinear {
  Linear all;
  const Run* runs;
  int64_t count;
  int64_t most;
};

// Returns the bytes of scratch for a part of a linear layer over quantized blocks.
static inline int64_t stored_scratch(int64_t rows, int64_t in) {
  return linear_scratch(rows, in) + rows * in * 3 + (in + rows) * kPanel * 4 + 65536;
}

// Attention sums over positions in an order given by the positions alone: tiles of 64 one after the other, and sums of
// segments of 512 in order. So a query's bits are independent of other queries, and a long context can be divided over
// threads.
constexpr int64_t kTile = 64;
constexpr int64_t kSegment = 512;

// A position of a head in pages of int8: `head_dim` codes up to this size, and a float32 scale for each group of them.
constexpr int kLargestCode = 127;
constexpr int64_t kScaleGroup = 64;

// Returns the number of scales of a position of a head in pages of int8, and the bytes of the position.
static inline int64_t scale_groups(int64_t head_dim) { return (head_dim + kScaleGroup - 1) / kScaleGroup; }
static inline int64_t scaled_width(int64_t head_dim) {
  return head_dim + scale_groups(head_dim) * static_cast<int64_t>(sizeof(float));
}

// Attention over a pool of pages, [pages][sides][kv_heads][page_size][width], with sides for keys and values, or a
// single side for both.
struct Attention {
  const float* q;     // [queries][heads][head_dim]
  const void* pages;  // float, bfloat16 or int8
  float* out;         // like q
  int64_t pool, sides, kv_heads, page_size, head_dim, heads;
  int64_t width;        // head_dim, or `scaled_width` of it for int8
  int64_t table_width;  // pages in a row of the table
  float scale;
  int64_t window;      // 0 for all positions
  float soft_cap;      // 0 for none
  const float* sinks;  // [heads], the score of a position with zeros as values, or null
};

// A part of an attention: adjacent queries of one sequence, for the query heads of one key-value head.
struct AttentionPart {
  const int32_t* table;  // the sequence's row
  int64_t first_query, queries;
  int64_t kv_head;
  int64_t position;           // of the first query; it attends to itself and all earlier positions
  const int32_t* until;       // the end of the positions visible to each query, never falling; null for its own
  float* scratch;             // room for `attention_scratch` numbers
  int64_t segment;            // if `states` is not null: the only segment to compute
  float* states;              // [group][attention_state], to be combined later
  const AttentionPart* next;  // the part whose first keys this part prefetches, or null
};

// Returns the size of one query head's partial sums.
static inline int64_t attention_state(int64_t head_dim) { return (head_dim + 15) / 16 * 16 + 32; }

// Returns the floats of room for a query, for the keys of a tile, and for the scales of its keys and values.
static inline int64_t query_room(int64_t head_dim) { return head_dim + 4; }
static inline int64_t keys_room(int64_t head_dim) { return (head_dim + 3) * kTile; }
static inline int64_t scales_room(int64_t head_dim) { return 2 * scale_groups(head_dim) * kTile; }

// Returns the floats of scratch for a part with so many query heads.
static inline int64_t attention_scratch(int64_t heads, int64_t head_dim) {
  return heads * (query_room(head_dim) + 2 * attention_state(head_dim)) + keys_room(head_dim) + scales_room(head_dim);
}

// y = d / sqrt(mean(d * d) + eps) * weight + bias, row by row, where d is x, or x - mean(x) if it is `centred`.
struct Norm {
  const float *x, *weight, *bias;  // [rows][features], [features], and [features] or null
  float* y;
  int64_t features;
  float eps;
  bool centred;  // a bias needs it
};

// Queries and keys are rotated by the angles of their token, and separated; values are copied next to the keys.
struct Rotation {
  const float *x, *cos, *sin;  // [tokens][heads + 2 * kv_heads][head_dim], [tokens][pairs] twice
  float *q, *kv;               // [tokens][heads][head_dim], [tokens][2][kv_heads][head_dim]
  int64_t heads, kv_heads, head_dim;
  int64_t pairs;  // rotary pairs of a head
};

// y = silu(x[:features]) * x[features:], row by row.
struct Gate {
  const float* x;  // [rows][2 * features]
  float* y;        // [rows][features]
  int64_t features;
};

// Adjacent tokens of one slot, in order. They begin from zeros if they are `fresh`, else from the slot's state.
struct Stretch {
  int64_t slot, first_token, tokens;
  bool fresh;
};

// A causal depthwise convolution of tokens with the inputs before them. A slot's state is its last inputs.
struct Convolution {
  const float *x, *weight, *bias;  // [tokens][channels], [channels][taps], and [channels] or null
  float *states, *y;               // [slots][taps - 1][channels], and like x
  int64_t channels, taps;
};
constexpr int64_t kTaps = 16;       // the most taps
constexpr int64_t kChannels = 128;  // channels of a part

// A recurrence of one matrix per slot and head: S = exp(decay) * S + k (x) d, and o = q . S. Without the delta rule, d
// is v; with it, d is beta * (v - k . (exp(decay) * S)).
//
// A column of S depends on no other column. Tokens come one after the other, each with the same rounding, so a token's
// bits are independent of the stretch around it.
struct Recurrence {
  const float *q, *k, *v;     // [tokens][key_heads][keys] twice, [tokens][heads][values]
  const float *decay, *beta;  // [tokens][heads][decays], and [tokens][heads] or null
  float *states, *o;          // [slots][heads][keys][values], and like v
  int64_t key_heads, heads, keys, values;
  int64_t decays;  // 1, or `keys` for a decay of each row of S
};
constexpr int64_t kColumns = 64;  // columns of a part

// Returns the floats of scratch for a part of a recurrence.
static inline int64_t recurrence_scratch(int64_t keys) { return (keys + 15) / 16 * 16 * (3 + 16); }

// Sums of exp((x - largest) / temperature) over the tokens of each row whose x is at least `least`.
//
// The order of sums is fixed: token by token within parts of `kTokens`, then part by part.
struct Mass {
  const float *x, *largest, *temperature, *least;  // [tokens][rows], and [rows] each
  int64_t tokens, rows;
};
constexpr int64_t kTokens = 2048;

// The token of each row with the largest sum of -(largest - x) / temperature and noise, among the tokens whose x is at
// least `least`; the first of equal ones.
struct Draw {
  const float* x;                              // [tokens][rows]
  const uint32_t *first, *second;              // the key of each row's noise, [rows]
  const float *largest, *temperature, *least;  // [rows]
  int64_t tokens, rows;
};

// Logits adjusted by the bias and the marks of each row's slot.
struct Adjust {
  const float *x, *bias;  // [tokens][rows], [slots][tokens]
  const int32_t* marks;   // [slots][tokens]: 1 in the prompt, 2 an end token, and 4 times the count in the output
  const int32_t* owners;  // [rows], the slot of each; negative for an unchanged row
  const float *repetition, *frequency, *presence;  // [rows]
  const int32_t* too_early;                        // [rows], whether end tokens are banned
  float* y;                                        // [tokens][rows]
  int64_t tokens, rows;
};

constexpr int64_t kBlock = 64;  // tokens per maximum in the search for the largest ones

// Rounding of the steps of a number to a dtype.
enum class Rounding : int32_t { kNone = 0, kBfloat16 = 1, kHalf = 2 };

// Rows of codes of 4 or 8 bits, as in `quantized.py`: `(table[code] - zero) * scale + bias`, each step rounded. A row
// has `stride` bytes, and `groups` scales, each for `group` numbers.
struct Codes {
  const uint8_t* data;
  const float *table, *scales, *zeros, *biases;  // the last two may be null
  int64_t stride, in, group, groups;
  int32_t bits;
  Rounding rounding;
};

struct Kernels {
  const char* name;
  void (*linear_f32)(const Linear&, const LinearPart&);
  void (*linear_bf16)(const Linear&, const LinearPart&);
  // The scratch has `stored_scratch` bytes.
  void (*linear_stored)(const StoredLinear&, const LinearPart&);
  void (*norm)(const Norm&, int64_t first, int64_t rows);
  void (*rotate)(const Rotation&, int64_t first, int64_t tokens);
  void (*gate)(const Gate&, int64_t first, int64_t rows);
  // Computes some channels of a stretch, and updates the slot's last inputs of them.
  void (*convolve)(const Convolution&, const Stretch&, int64_t first_channel);
  // Computes some columns of one head for a stretch, and updates the slot's matrix there.
  void (*recur)(const Recurrence&, const Stretch&, int64_t head, int64_t first_column, float* scratch);
  // Sums one part of the tokens: [rows].
  void (*mass)(const Mass&, int64_t first, int64_t tokens, float* sums);
  // Finds the best token of one part: its score and its place, [rows] each.
  void (*draw)(const Draw&, int64_t first, int64_t tokens, float* scores, int32_t* places);
  // Finds each row's maximum in some blocks of `kBlock` tokens: [blocks][rows]. A NaN counts as infinity.
  void (*maxima)(const float* x, int64_t tokens, int64_t rows, int64_t first, int64_t blocks, float* maxima);
  void (*adjust)(const Adjust&, int64_t first, int64_t tokens);
  void (*attend_f32)(const Attention&, const AttentionPart&);
  void (*attend_bf16)(const Attention&, const AttentionPart&);
  void (*attend_i8)(const Attention&, const AttentionPart&);
  // Adds up the states of [segments][group] query heads, and writes the result of one query of these heads.
  void (*combine)(const Attention&, const AttentionPart&, int64_t segments);
  // Writes rows of numbers as rows of int8 with their scale.
  void (*quantize)(const float* x, int64_t rows, int64_t head_dim, int8_t* to);
  // Writes the numbers of rows of codes as rows of a packed weight.
  void (*pack_codes_f32)(const Codes&, float* packed, int64_t first, int64_t rows);
  void (*pack_codes_bf16)(const Codes&, uint16_t* packed, int64_t first, int64_t rows);
};

// Returns the kernels for the best instruction set of this machine, or null if it has none of the compiled ones.
const Kernels* kernels();

}  // namespace rekindle
