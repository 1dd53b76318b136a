//! Names that are a slip away from what was typed.

use super::DEMO;

/// `; did you mean ...?` where a known name is a slip or a case away.
pub fn suggestion(wanted: &str, known: &[String]) -> String {
    let low = wanted.to_lowercase();
    let near = |name: &&str| {
        let (name, short) = (name.to_lowercase(), name.rsplit('/').next().unwrap_or(name).to_lowercase());
        let slack = 1 + low.len() / 6;
        name != low && (distance(&low, &name) <= slack || distance(&low, &short) <= slack)
    };
    let names: Vec<&str> = [DEMO].into_iter().chain(known.iter().map(String::as_str)).filter(near).take(3).collect();
    if names.is_empty() { String::new() } else { format!("; did you mean {}?", names.join(" or ")) }
}

/// Edit distance with neighbouring swaps (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, _) => j,
                (_, 0) => i,
                _ => {
                    let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                    let mut best = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                    if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                        best = best.min(rows[i - 2][j - 2] + 1);
                    }
                    best
                }
            };
        }
    }
    rows[a.len()][b.len()]
}
