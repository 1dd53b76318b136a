//! Hessians of GPTQ and their factors on a GPU, which have the processor's bits.

use super::{Finding, Random, Report};
use dmschat::quantize::hessian::{OpenTriangle, Sums};
use std::time::Instant;

/// Columns and rows of inputs: triangles of a part of a group of panels, of several groups, with
/// chunks of rows and a rest.
const SIZES: [[usize; 2]; 4] = [[16, 40], [64, 256], [208, 300], [464, 700]];

/// Compares the factors bit for bit.
pub fn run_all(open: &OpenTriangle, report: &mut Report<'_>) {
    for [cols, rows] in SIZES {
        if report.takes() {
            let started = Instant::now();
            let broken = difference(open, cols, rows);
            let name = format!("hessian of {cols} columns, {rows} rows");
            report.add(Finding { name, error: 0.0, limit: 0.0, broken, time: started.elapsed() });
        }
    }
}

/// How the GPU's factor differs, if it does.
fn difference(open: &OpenTriangle, cols: usize, rows: usize) -> Option<String> {
    let mut random = Random::new(3);
    // Columns of different sizes.
    let x: Vec<f32> =
        random.floats(cols * rows).iter().enumerate().map(|(i, x)| x * (1 + i % cols % 7) as f32).collect();
    let x: Vec<&[f32]> = x.chunks_exact(cols).collect();
    let Some(mut triangle) = open(cols, rows) else { return Some("the GPU has no room".to_owned()) };
    if !triangle.cholesky(vec![-1.0; cols]).is_ok_and(|factor| factor.is_none()) {
        return Some("a matrix without a factor has one".to_owned());
    }
    drop(triangle);
    let bits = |open: Option<&OpenTriangle>| -> anyhow::Result<_> {
        let mut sums = Sums::new(cols, rows, 2, open);
        // In two parts.
        let (some, others) = x.split_at(rows / 3);
        sums.add(some, 2)?;
        sums.add(others, 2)?;
        let factor = sums.factor(2)?;
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        Ok(factor.map(|factor| [bits(factor.parts().0), bits(factor.parts().1)]))
    };
    match (bits(Some(open)), bits(None)) {
        (Ok(Some(gpu)), Ok(Some(cpu))) if gpu == cpu => None,
        (Ok(Some(gpu)), Ok(Some(cpu))) => {
            let differ = gpu.iter().flatten().zip(cpu.iter().flatten()).filter(|(gpu, cpu)| gpu != cpu).count();
            Some(format!("{differ} values differ"))
        }
        (Err(why), _) => Some(format!("{why:#}")),
        _ => Some("one has no factor".to_owned()),
    }
}
