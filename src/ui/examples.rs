//! What the welcome screen offers to try; each is something the built-in model can do.

/// Texts that Tab (or Alt+1 to Alt+3) puts into the input.
pub const EXAMPLES: [&str; 3] = [
    "Solve 5*b - 2355 = -50*b - 2740 for b.",
    "a = 4; b = a + 7; c = b - 2; a = c + 5. What is a?",
    "What can you do?",
];
