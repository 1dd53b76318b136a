//! The results of a run as CSV, JSON and a table for the terminal.

use super::frontier::{Point, frontier, margin};
use super::grid::Row;
use serde::Serialize;
use serde_json::{Value, json};

/// Costs of a point of accuracy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// KV token reads per problem.
    Reads,
    /// Peak tokens per problem.
    Peak,
}

impl Cost {
    pub const ALL: [Cost; 2] = [Cost::Reads, Cost::Peak];

    pub fn title(self) -> &'static str {
        match self {
            Cost::Reads => "KV token reads per problem",
            Cost::Peak => "peak tokens per problem",
        }
    }

    fn of(self, row: &Row) -> f64 {
        match self {
            Cost::Reads => row.reads,
            Cost::Peak => row.peak,
        }
    }
}

/// The points of one policy in one task.
pub struct Method<'a> {
    pub policy: &'a str,
    pub rows: Vec<&'a Row>,
}

impl Method<'_> {
    /// (cost, accuracy in percent) of a row.
    pub fn point(row: &Row, cost: Cost) -> Point {
        (cost.of(row), 100.0 * row.accuracy)
    }

    pub fn frontier(&self, cost: Cost) -> Vec<Point> {
        frontier(&self.rows.iter().map(|row| Self::point(row, cost)).collect::<Vec<_>>())
    }

    /// The rows on the frontier, by rising cost.
    pub fn best(&self, cost: Cost) -> Vec<&Row> {
        let points = self.frontier(cost);
        points.iter().filter_map(|p| self.rows.iter().copied().find(|row| Self::point(row, cost) == *p)).collect()
    }
}

/// A task and its methods, both in the order of the rows.
pub struct Panel<'a> {
    pub task: &'a str,
    pub methods: Vec<Method<'a>>,
}

/// Groups rows by task and policy.
pub fn panels(rows: &[Row]) -> Vec<Panel<'_>> {
    let mut out: Vec<Panel<'_>> = Vec::new();
    for row in rows {
        let at = out.iter().position(|p| p.task == row.task).unwrap_or_else(|| {
            out.push(Panel { task: &row.task, methods: Vec::new() });
            out.len() - 1
        });
        let methods = &mut out[at].methods;
        match methods.iter_mut().find(|m| m.policy == row.policy) {
            Some(method) => method.rows.push(row),
            None => methods.push(Method { policy: &row.policy, rows: vec![row] }),
        }
    }
    out
}

/// The rows as CSV. Holds no times, so that a seed gives the same bytes.
pub fn csv(rows: &[Row]) -> String {
    let mut out = "task,policy,length,width,cr,cr_measured,budget,n,accuracy,pass_all,error,draw_error,reads,peak,tokens,prompt,peak_shared\n"
        .to_owned();
    for r in rows {
        let Row { policy, length, width, cr, cr_measured, n, accuracy, pass_all, error, draw_error, .. } = r;
        let Row { reads, peak, tokens, prompt, peak_shared, .. } = r;
        let budget = r.budget.map_or(String::new(), |b| b.to_string());
        let task = if r.task.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", r.task.replace('"', "\"\""))
        } else {
            r.task.clone()
        };
        out += &format!(
            "{task},{policy},{length},{width},{cr},{cr_measured:.4},{budget},{n},{accuracy:.4},{pass_all:.4},{error:.4},\
             {draw_error:.4},{reads:.2},{peak:.2},{tokens:.2},{prompt:.2},{peak_shared:.2}\n"
        );
    }
    out
}

/// The margin of a policy over the first one of its task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Margin {
    pub task: String,
    pub policy: String,
    pub over: String,
    /// Points of accuracy at equal reads, and at equal peak memory. `None` if the costs do not
    /// overlap.
    pub reads: Option<f64>,
    pub peak: Option<f64>,
}

pub fn margins(rows: &[Row]) -> Vec<Margin> {
    let mut out = Vec::new();
    for panel in panels(rows) {
        let Some((first, others)) = panel.methods.split_first() else { continue };
        for method in others {
            let over = |cost| margin(&method.frontier(cost), &first.frontier(cost));
            let [task, policy, over_policy] = [panel.task, method.policy, first.policy].map(str::to_owned);
            let (reads, peak) = (over(Cost::Reads), over(Cost::Peak));
            out.push(Margin { task, policy, over: over_policy, reads, peak });
        }
    }
    out
}

/// The JSON of a run.
pub fn as_json(run: &Value, rows: &[Row], retention: &Value, seconds: &Value) -> Value {
    let frontiers: Vec<Value> = panels(rows)
        .iter()
        .flat_map(|panel| {
            let one = |method: &Method<'_>| {
                let labels = |cost| method.best(cost).iter().map(|row| row.label()).collect::<Vec<_>>();
                json!({"task": panel.task, "policy": method.policy, "reads": method.frontier(Cost::Reads), "peak": method.frontier(Cost::Peak),
                       "reads_labels": labels(Cost::Reads), "peak_labels": labels(Cost::Peak)})
            };
            panel.methods.iter().map(one).collect::<Vec<_>>()
        })
        .collect();
    json!({"run": run, "rows": rows, "frontiers": frontiers, "margins": margins(rows), "retention": retention, "seconds": seconds})
}

/// The rows and margins for the terminal.
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
    out.push_str("model s: larger of FLOPs / peak and bytes / bandwidth of this machine; measured s: share of a group of problems\n");
    for m in margins(rows) {
        let show = |x: Option<f64>| x.map_or("NA".to_owned(), |x| format!("{x:+.1}"));
        let (Margin { task, policy, over, .. }, reads, peak) = (&m, show(m.reads), show(m.peak));
        out += &format!("{task}: {policy} over {over}: {reads} points at equal reads, {peak} at equal peak\n");
    }
    out
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A row at a cost.
    pub fn row(task: &str, policy: &str, reads: f64, accuracy: f64) -> Row {
        Row {
            task: task.into(),
            policy: policy.into(),
            length: 512,
            width: 2,
            cr: 4.0,
            cr_measured: 3.5,
            budget: None,
            n: 10,
            accuracy,
            pass_all: accuracy,
            error: 0.1,
            draw_error: 0.0,
            reads,
            peak: reads / 10.0,
            tokens: 100.0,
            prompt: 20.0,
            peak_shared: reads / 20.0,
            model_seconds: None,
            seconds: Some(0.25),
        }
    }

    #[test]
    fn rows_become_csv_margins_and_a_table() {
        let rows = [
            row("a,b", "dense", 100.0, 0.2),
            row("a,b", "dense", 300.0, 0.4),
            row("a,b", "dms", 100.0, 0.3),
            row("a,b", "dms", 200.0, 0.4),
            row("c", "dense", 5.0, 1.0),
        ];
        let csv = csv(&rows);
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines.len(), 6);
        assert_eq!(
            lines[1],
            "\"a,b\",dense,512,2,4,3.5000,,10,0.2000,0.2000,0.1000,0.0000,100.00,10.00,100.00,20.00,5.00"
        );
        assert_eq!(lines[0].split(',').count(), 17);
        let margins = margins(&rows);
        // 30 - 20 at 100 and 40 - 30 at 200.
        assert_eq!((margins.len(), margins[0].reads.map(|m| m.round())), (1, Some(10.0)));
        let text = table(&rows);
        assert!(text.contains("dms over dense: +10.0 points at equal reads"), "{text}");
        assert_eq!(panels(&rows).len(), 2);
        let json = as_json(&Value::Null, &rows, &Value::Null, &Value::Null);
        assert_eq!(json["frontiers"][0]["reads_labels"][0], "512-2-4");
    }
}
