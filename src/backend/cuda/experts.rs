//! Mixtures of experts: `kernels/experts.cu`. The router's choice stays on the device, so steps can
//! be captured as usual.

use super::super::ExpertsArgs;
use super::abi::Arg::{self, I32, Ptr};
use super::gemm::{self, Gate};
use super::gpu::Cuda;
use super::kernels::BLOCK;
use super::kernels::Kernel;
use super::memory::{Acts, Buf, Stored, Weight, dtype_number};
use crate::quant::file::FileCode;
use crate::quant::{Code, TILE_ROWS};
use crate::tensor::DType;

/// Codes that the kernels multiply by.
pub const CODES: &[Code] = &[Code::Q8, Code::Q4, Code::Q4H, Code::File(FileCode::Mxfp4)];
/// Threads of `route`, `choose_experts`, `sort_experts`, `experts_gemm` and `gate_experts`. A warp
/// computes an expert's logit.
const ROUTE_THREADS: usize = 256;
const CHOOSE_THREADS: usize = 32;
const SORT_THREADS: usize = 1024;
const GEMM_THREADS: usize = 128;
const GATE_THREADS: usize = 256;
/// Pairs of a tile, of few and of many.
const FEW: usize = 8;
const MANY: usize = 32;
/// Most tokens whose pairs each read their expert, without an order of experts; most experts of
/// such a token; most warps that sum a strip of their outputs.
const FEW_TOKENS: usize = 4;
const MOST_CHOSEN: usize = 16;
const SUM_WARPS: usize = 24;

/// Whether there are kernels for experts of that width.
pub fn has_experts(hidden: usize, width: usize) -> bool {
    hidden.is_multiple_of(TILE_ROWS) && width.is_multiple_of(TILE_ROWS)
}

/// [`Ops::experts`](super::Ops::experts)
pub(super) fn experts(cuda: &Cuda, x: &mut Acts, h: &Acts, args: ExpertsArgs<'_, Cuda>, n: usize) {
    cuda.settle();
    let ExpertsArgs { router, gate_up, down, per_token, normalized, shared, clamped, beside, rows, .. } = args;
    let [of_router, of_gate_up, of_down] =
        [args.router_bias, args.gate_up_bias, args.down_bias].map(|bias| Ptr(bias.map_or(0, Buf::ptr)));
    let (count, k) = (router.rows, per_token + usize::from(shared));
    let pairs = n * k;
    assert_eq!([h.width, x.width, rows.out.width], [router.cols; 3], "columns of experts");
    assert!(has_experts(gate_up.cols, down.cols), "experts of {} columns have no kernels", down.cols);
    [(&*x, n), (&rows.logits, n), (&rows.gate_up, pairs), (&rows.out, pairs)]
        .iter()
        .for_each(|(acts, rows)| acts.holds_f32(*rows));
    let router_input = beside.as_ref().map_or(h, |beside| beside.router_input);
    [h, router_input].iter().for_each(|acts| acts.holds(n));
    let int = |n: usize| I32(n as i32);
    let [order, place, starts] = [0, pairs, 2 * pairs].map(|at| rows.order.from(at));
    let [chosen, weights] = [rows.chosen.ptr(), rows.weights.ptr()];
    let Stored::Plain(dtype) = router.stored else { panic!("a router is not packed") };
    let input = [Ptr(router_input.ptr()), I32(router_input.bf16 as i32)];
    let from = [&[Ptr(rows.logits.ptr())][..], &input, &[Ptr(router.ptr()), of_router]].concat();
    let sizes = [I32(dtype_number(dtype)), int(count), int(router.cols)];
    let blocks = count.div_ceil(ROUTE_THREADS / 32);
    cuda.driver.launch(Kernel::Route, [blocks, n, 1], ROUTE_THREADS, &[&from[..], &sizes].concat());
    let gate = match (clamped, &beside) {
        (true, _) => Gate::Clamped,
        (_, Some(_)) => Gate::Gelu,
        _ => Gate::Silu,
    };
    let stored = |weight: &Weight| match weight.stored {
        Stored::Plain(dtype) => (0, dtype_number(dtype)),
        Stored::Packed => (code(weight), 0),
    };
    let chosen_of = [int(count - usize::from(shared)), int(per_token), I32(normalized as i32), I32(shared as i32)];
    let factors = Ptr(beside.as_ref().map_or(0, |beside| beside.factors.ptr()));
    let is_fast =
        [gate_up, down].iter().all(|weight| matches!(weight.stored, Stored::Packed | Stored::Plain(DType::Bf16)));
    if n <= FEW_TOKENS && k <= MOST_CHOSEN && is_fast {
        let act = &rows.act;
        act.fills(pairs);
        let to = [Ptr(act.ptr()), I32(act.bf16 as i32), Ptr(chosen), Ptr(weights), Ptr(h.ptr()), I32(h.bf16 as i32)];
        let of =
            [Ptr(rows.logits.ptr()), factors, Ptr(gate_up.ptr()), of_gate_up, int(stored(gate_up).0), I32(gate as i32)];
        let sizes = [int(act.width), int(h.width)];
        let gates = [act.width / TILE_ROWS, pairs, 1];
        cuda.driver.launch(Kernel::GateExperts, gates, GATE_THREADS, &[&to[..], &of, &chosen_of, &sizes].concat());
        let split = (SUM_WARPS / k).max(1);
        let from =
            [Ptr(x.ptr()), Ptr(act.ptr()), I32(act.bf16 as i32), Ptr(chosen), Ptr(weights), Ptr(down.ptr()), of_down];
        let sizes = [stored(down).0, k, split, x.width, act.width, usize::from(beside.is_some())].map(int);
        let sums = [x.width / TILE_ROWS, n, 1];
        cuda.driver.launch(Kernel::SumExperts, sums, 32 * k * split, &[&from[..], &sizes].concat());
        return;
    }
    let choice = [&[Ptr(chosen), Ptr(weights), Ptr(rows.logits.ptr()), factors][..], &chosen_of].concat();
    cuda.driver.launch(Kernel::ChooseExperts, [n, 1, 1], CHOOSE_THREADS, &choice);
    let sort = [Ptr(order), Ptr(place), Ptr(starts), Ptr(chosen), int(count), int(pairs)];
    cuda.driver.launch(Kernel::SortExperts, [1, 1, 1], SORT_THREADS, &sort);
    let multiply = |out: &Acts, x: &Acts, weight: &Weight, bias: Arg<'_>, order: u64| {
        let (kernel, most) =
            if pairs > FEW * count { (Kernel::ExpertsGemmMany, MANY) } else { (Kernel::ExpertsGemmFew, FEW) };
        let (code, dtype) = stored(weight);
        let operands =
            [Ptr(out.ptr()), Ptr(x.ptr()), I32(x.bf16 as i32), Ptr(weight.ptr()), bias, int(code), I32(dtype)];
        let sizes = [Ptr(order), Ptr(starts), int(count), int(k), int(out.width), int(x.width)];
        // Each expert may have one tile that is not full.
        let tiles = pairs.min(pairs / most + count);
        cuda.driver.launch(kernel, [out.width / TILE_ROWS, tiles, 1], GEMM_THREADS, &[&operands[..], &sizes].concat());
    };
    multiply(&rows.gate_up, h, gate_up, of_gate_up, order);
    gemm::glu(cuda, &mut rows.act, 0, &rows.gate_up, pairs, gate);
    multiply(&rows.out, &rows.act, down, of_down, 0);
    let sizes = [int(k), int(x.width), I32(beside.is_some() as i32)];
    let sum = [&[Ptr(x.ptr()), Ptr(rows.out.ptr()), Ptr(weights), Ptr(place)][..], &sizes].concat();
    cuda.driver.launch(Kernel::AddExperts, [x.width.div_ceil(BLOCK), n, 1], BLOCK, &sum);
}

/// The code of all experts: `ExpertsCode` in `experts.cu`.
fn code(weight: &Weight) -> usize {
    let code = if let [part] = &weight.parts[..] { CODES.iter().position(|code| *code == part.code) } else { None };
    1 + code.expect("experts with other codes are refused when kernels are loaded")
}
