//! The rows of a run as a table for the terminal. `lab/report.py` makes everything else of them:
//! frontiers, margins, CSV, plots and the tables of docs.

use super::grid::Row;

pub fn table(rows: &[Row]) -> String {
    let wide = rows.iter().map(|r| r.task.chars().count()).max().unwrap_or(0).max(4);
    let mut out = format!(
        "{:<wide$}  policy     L      W  CR    measured     n  accuracy         pass@all      reads       peak  pages x 16    model s  measured s\n",
        "task"
    );
    let seconds = |s: Option<f64>| s.map_or("-".to_owned(), |s| format!("{s:.4}"));
    for r in rows {
        let Row { task, policy, length, width, cr, cr_measured, n, reads, peak, peak_shared, .. } = r;
        let [accuracy, error, all] = [r.accuracy, r.error, r.pass_all].map(|share| 100.0 * share);
        let [model_s, measured_s] = [r.model_seconds, r.seconds].map(seconds);
        out += &format!(
            "{task:<wide$}  {policy:<9}  {length:<5}  {width:<2} {cr:>3}x  {cr_measured:>7.2}x  {n:>5}  {accuracy:>5.1} ± \
             {error:>4.1} %  {all:>6.1} %  {reads:>10.0}  {peak:>9.0}  {peak_shared:>10.0}  {model_s:>9}  {measured_s:>10}\n"
        );
    }
    out + "model s: larger of FLOPs / peak and bytes / bandwidth of this machine; measured s: share of a group of problems\n"
}
