//! Pareto frontiers of points (cost, accuracy), and the margin of one method over another.

/// (cost, accuracy).
pub type Point = (f64, f64);

/// Points that are more accurate than every point of the same or lower cost, by rising cost.
pub fn frontier(points: &[Point]) -> Vec<Point> {
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
    let mut out: Vec<Point> = Vec::new();
    for point in sorted {
        if out.last().is_none_or(|best| point.1 > best.1) {
            out.push(point);
        }
    }
    out
}

/// Mean difference in accuracy of frontier `a` over frontier `b` on the costs that both span, each
/// interpolated linearly. `None` where they span no common cost.
pub fn margin(a: &[Point], b: &[Point]) -> Option<f64> {
    let (low, high) = (a.first()?.0.max(b.first()?.0), a.last()?.0.min(b.last()?.0));
    if low > high {
        return None;
    }
    let difference = |x: f64| at(a, x) - at(b, x);
    if low == high {
        return Some(difference(low));
    }
    let inner = a.iter().chain(b).map(|p| p.0).filter(|x| (low..high).contains(x));
    let mut xs: Vec<f64> = inner.chain([low, high]).collect();
    xs.sort_by(f64::total_cmp);
    // The difference is linear between two points: the trapezoid is exact.
    let area: f64 = xs.windows(2).map(|w| (w[1] - w[0]) * (difference(w[0]) + difference(w[1])) / 2.0).sum();
    Some(area / (high - low))
}

/// Accuracy of a frontier at a cost that it spans.
fn at(frontier: &[Point], x: f64) -> f64 {
    let next = frontier.partition_point(|p| p.0 < x).min(frontier.len() - 1);
    let (x1, y1) = frontier[next];
    if x1 <= x || next == 0 {
        return y1;
    }
    let (x0, y0) = frontier[next - 1];
    y0 + (y1 - y0) * (x - x0) / (x1 - x0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frontier_keeps_what_is_better_than_all_cheaper() {
        let points = [(4.0, 50.0), (1.0, 10.0), (2.0, 40.0), (3.0, 30.0), (4.0, 60.0), (5.0, 60.0), (1.0, 20.0)];
        assert_eq!(frontier(&points), [(1.0, 20.0), (2.0, 40.0), (4.0, 60.0)]);
        assert_eq!(frontier(&[]), []);
    }

    /// Worked by hand: a is 20, 40, 60 at 1, 2, 4; b is 10, 50 at 2, 6. Common: 2 to 4. The
    /// differences are 40 - 10 = 30 at 2 and 60 - 30 = 30 at 4.
    #[test]
    fn a_margin_is_the_mean_difference_over_the_common_costs() {
        let a = [(1.0, 20.0), (2.0, 40.0), (4.0, 60.0)];
        let b = [(2.0, 10.0), (6.0, 50.0)];
        assert_eq!(margin(&a, &b), Some(30.0));
        assert_eq!(margin(&b, &a), Some(-30.0));
        // From 1 to 2 the difference is 0 to 20, from 2 to 3 it is 20 to 0: a triangle of area 20
        // over a length of 2.
        let (roof, floor) = ([(1.0, 20.0), (2.0, 45.0), (3.0, 50.0)], [(1.0, 20.0), (2.0, 25.0), (3.0, 50.0)]);
        assert_eq!(margin(&roof, &floor), Some(10.0));
        assert_eq!(margin(&a, &[(4.0, 50.0), (9.0, 90.0)]), Some(10.0), "one common cost");
        assert_eq!(margin(&a, &[(5.0, 50.0)]), None);
        assert_eq!(margin(&a, &[]), None);
        assert_eq!(margin(&[(3.0, 7.0)], &[(3.0, 5.0)]), Some(2.0));
    }
}
