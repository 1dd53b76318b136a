//! The angles of RoPE at a step's positions.

/// Cosines and sines of a step's rows, shared by all layers of the step.
#[derive(Default)]
pub(super) struct Angles {
    pub(super) positions: Vec<usize>,
    pub(super) inv_freq: Vec<f32>,
    /// Factor of all cosines and sines.
    pub(super) factor: f32,
    /// `[n, inv_freq.len()]` each.
    pub(super) cos: Vec<f32>,
    pub(super) sin: Vec<f32>,
}

impl Angles {
    /// Computes the angles of these positions, unless the last call has computed them.
    pub(super) fn update(&mut self, positions: impl Iterator<Item = usize> + Clone, inv_freq: &[f32], factor: f32) {
        let same = self.inv_freq == inv_freq && self.factor == factor;
        if same && positions.clone().eq(self.positions.iter().copied()) {
            return;
        }
        self.positions.clear();
        self.positions.extend(positions);
        self.inv_freq.clear();
        self.inv_freq.extend_from_slice(inv_freq);
        self.factor = factor;
        self.cos.clear();
        self.sin.clear();
        for &position in &self.positions {
            for &f in inv_freq {
                // In f64: at position 40,000 an f32 product is off by up to 0.002 radians.
                let (sin, cos) = (position as f64 * f as f64).sin_cos();
                self.cos.push(cos as f32 * factor);
                self.sin.push(sin as f32 * factor);
            }
        }
    }
}
