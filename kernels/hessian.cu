// The Hessian of a matrix's inputs and its Cholesky factor, by which GPTQ corrects errors, with the
// bits of the CPU: fused f32 sums over CHUNK rows, in their order, which f64 sums add up. CPU twin:
// `quantize::hessian`, which also describes panels: 16 columns of a matrix row by row, or 16 rows
// of a lower triangle column by column.
#include "common.cuh"

#define WIDTH 16             // of a panel
#define GROUP 4              // panels: a block of rows, and columns that are factored at a time
#define SIDE (WIDTH * GROUP)
#define CHUNK 256            // rows whose products are summed in f32
#define STAGED 16            // rows in shared memory at a time
#define THREADS 256          // of the products of two groups: a thread has 4 x 4 of them
#define FACTOR_THREADS SIDE  // a thread has a row

// Where panel `p` of a lower triangle begins, in values.
__device__ __forceinline__ u64 panel_at(int p) { return (u64)(WIDTH * WIDTH / 2) * p * (p + 1); }
// Where column `col` of a row in the triangle is; the row is `lane` of panel `p`.
__device__ __forceinline__ u64 value_at(int p, int col, int lane) { return panel_at(p) + (u64)col * WIDTH + lane; }

// STAGED rows of a group's panels.
typedef float Staged[STAGED][SIDE];

// Panels of one group: their addresses, of which those past the last panel are null.
struct Panels {
  const float* first[GROUP];
};

// Rows [from, end) of a group of panels; rows and panels that do not exist are zeros.
__device__ __forceinline__ void stage(Staged& to, const Panels& panels, int from, int end) {
  int panel = threadIdx.x / SIDE, at = threadIdx.x % SIDE * 4, row = at / WIDTH, c = at % WIDTH;
  const float* x = panels.first[panel];
  float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
  if (x && from + row < end) four = *(const float4*)(x + (u64)from * WIDTH + at);
  *(float4*)&to[row][panel * WIDTH + c] = four;
}

// sums[c][i] += products of columns 4 y + c of `a` and 4 x + i of `b` over `rows` rows.
__device__ __forceinline__ void add_products(double (&sums)[4][4], const Panels& a, const Panels& b, int rows, int x, int y) {
  __shared__ Staged staged_a, staged_b;
  for (int chunk = 0; chunk < rows; chunk += CHUNK) {
    int end = min(rows, chunk + CHUNK);
    float tile[4][4] = {};
    for (int from = chunk; from < end; from += STAGED) {
      __syncthreads();
      stage(staged_a, a, from, end);
      stage(staged_b, b, from, end);
      __syncthreads();
      int n = min(STAGED, end - from);
#pragma unroll 4
      for (int k = 0; k < n; k++) {
        float4 u = *(const float4*)&staged_a[k][4 * y], v = *(const float4*)&staged_b[k][4 * x];
        float us[4] = {u.x, u.y, u.z, u.w}, vs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int c = 0; c < 4; c++) {
#pragma unroll
          for (int i = 0; i < 4; i++) tile[c][i] = __fmaf_rn(us[c], vs[i], tile[c][i]);
        }
      }
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
#pragma unroll
      for (int i = 0; i < 4; i++) sums[c][i] += (double)tile[c][i];
    }
  }
}

// Adds the products of inputs' columns to the sums, a lower triangle: x [panels, rows, WIDTH]. Grid
// (groups of columns, groups of rows of the triangle). Reads and writes the triangle once, and each
// panel of x once for each group.
KERNEL __launch_bounds__(THREADS) hessian_add(double* lower, const float* x, int rows, int panels) {
  after_previous();
  if (blockIdx.x > blockIdx.y) return;
  Panels a, b;
#pragma unroll
  for (int i = 0; i < GROUP; i++) {
    int q = GROUP * blockIdx.x + i, p = GROUP * blockIdx.y + i;
    a.first[i] = q < panels ? x + (u64)q * rows * WIDTH : nullptr;
    b.first[i] = p < panels ? x + (u64)p * rows * WIDTH : nullptr;
  }
  int tx = threadIdx.x % WIDTH, ty = threadIdx.x / WIDTH;
  int p = GROUP * blockIdx.y + tx / 4, lane = tx % 4 * 4, col = SIDE * blockIdx.x + 4 * ty;
  bool is_in = p < panels && col / WIDTH <= p;
  double sums[4][4] = {};
#pragma unroll
  for (int c = 0; c < 4; c++) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (is_in) sums[c][i] = lower[value_at(p, col + c, lane + i)];
    }
  }
  add_products(sums, a, b, rows, tx, ty);
#pragma unroll
  for (int c = 0; c < 4; c++) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (is_in) lower[value_at(p, col + c, lane + i)] = sums[c][i];
    }
  }
}

// The diagonal of the sums [cols], a thread a column.
KERNEL hessian_diagonal(double* out, const double* lower, int cols) {
  after_previous();
  int col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col < cols) out[col] = lower[value_at(col / WIDTH, col, col % WIDTH)];
}

// The sums in f32, with another diagonal [cols]. Grid (panels, panels), a block a tile.
KERNEL __launch_bounds__(WIDTH* WIDTH) hessian_round(float* out, const double* lower, const float* diagonal) {
  after_previous();
  int q = blockIdx.x, p = blockIdx.y;
  if (q > p) return;
  int c = threadIdx.x / WIDTH, lane = threadIdx.x % WIDTH;
  u64 at = value_at(p, WIDTH * q + c, lane);
  out[at] = p == q && c == lane ? diagonal[WIDTH * p + lane] : (float)lower[at];
}

// Products of the group of panels at `first` and of each group from there on, over the columns of
// the factor so far: sums [groups, SIDE columns, SIDE rows]. Grid (groups).
KERNEL __launch_bounds__(THREADS) factor_sums(double* out, const float* factor, int first, int panels) {
  after_previous();
  Panels a, b;
#pragma unroll
  for (int i = 0; i < GROUP; i++) {
    int q = first + i, p = first + GROUP * blockIdx.x + i;
    a.first[i] = q < panels ? factor + panel_at(q) : nullptr;
    b.first[i] = p < panels ? factor + panel_at(p) : nullptr;
  }
  int tx = threadIdx.x % WIDTH, ty = threadIdx.x / WIDTH;
  double sums[4][4] = {};
  add_products(sums, a, b, WIDTH * first, tx, ty);
  out += (u64)blockIdx.x * SIDE * SIDE;
#pragma unroll
  for (int c = 0; c < 4; c++) {
#pragma unroll
    for (int i = 0; i < 4; i++) out[(4 * ty + c) * SIDE + 4 * tx + i] = sums[c][i];
  }
}

// Values of the factor in the columns of a group: those of the group's own rows, and a thread's.
struct Columns {
  float group[SIDE][SIDE + 1];  // [column, row]
  float own[SIDE][FACTOR_THREADS];
};

// What is left of a thread's row in column `c` of a group after the products with the columns
// before it. `a` is the value of the matrix, and `sum` the products up to the group.
__device__ __forceinline__ double rest_of(const Columns& s, int c, float a, double sum) {
  int t = threadIdx.x, panel = c / WIDTH * WIDTH;
  float before = 0.0f;
  for (int k = 0; k < panel; k++) before = __fmaf_rn(s.group[k][c], s.own[k][t], before);
  double rest = (double)a - (sum + (double)before);
  for (int k = panel; k < c; k++) rest = fma(-(double)s.group[k][c], (double)s.own[k][t], rest);
  return rest;
}

// The factor of a group's own rows and columns, from `sums` of `factor_sums`. One block, a thread a
// row. `failed` becomes 1 if the matrix is not positive definite.
KERNEL __launch_bounds__(FACTOR_THREADS) factor_group(float* factor, const double* sums, int first, int panels, int* failed) {
  __shared__ Columns s;
  __shared__ double pivot;
  after_previous();
  int t = threadIdx.x, p = first + t / WIDTH, lane = t % WIDTH;
  bool is_in = p < panels;
  for (int c = 0; c < SIDE && first + c / WIDTH < panels; c++) {
    u64 at = value_at(p, WIDTH * first + c, lane);
    double rest = is_in && t >= c ? rest_of(s, c, factor[at], sums[c * SIDE + t]) : 0.0;
    if (t == c) pivot = rest;
    __syncthreads();
    double root = sqrt(pivot);
    // Later panels divide by the root that is stored.
    double divisor = t / WIDTH == c / WIDTH ? root : (double)(float)(pivot / root);
    if (is_in && t >= c) {
      float value = (float)(rest / divisor);
      s.own[c][t] = s.group[c][t] = factor[at] = value;
    }
    // Not positive, or not finite.
    if (t == c && !(pivot > 0.0 && pivot * 0.0 == 0.0)) *failed = 1;
    __syncthreads();
  }
}

// The factor's columns of a group in the rows below it: `sums` begins with the group's own. Grid
// (groups below), a thread a row.
KERNEL __launch_bounds__(FACTOR_THREADS) factor_rows(float* factor, const double* sums, int first, int panels) {
  __shared__ Columns s;
  after_previous();
  int t = threadIdx.x, p = first + GROUP * (1 + blockIdx.x) + t / WIDTH, lane = t % WIDTH;
  for (int c = 0; c < SIDE; c++) {
    // Below the diagonal, and in the columns of the row's own panel.
    if (t / WIDTH >= c / WIDTH) s.group[c][t] = factor[value_at(first + t / WIDTH, WIDTH * first + c, lane)];
  }
  __syncthreads();
  if (p >= panels) return;
  sums += (u64)(1 + blockIdx.x) * SIDE * SIDE;
  for (int c = 0; c < SIDE; c++) {
    u64 at = value_at(p, WIDTH * first + c, lane);
    double rest = rest_of(s, c, factor[at], sums[c * SIDE + t]);
    s.own[c][t] = factor[at] = (float)(rest / (double)s.group[c][c]);
  }
}
