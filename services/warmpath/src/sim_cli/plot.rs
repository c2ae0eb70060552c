//! The figures as a drawing: time to first token against the load, a line for each policy. Where a
//! workload has no clock, the hit rate takes its place.

use std::fmt::Write as _;

use anyhow::{Context as _, ensure};
use serde_json::{Map, Value};

use super::row::Row;
use crate::stats::mean;

const WIDTH: f64 = 820.0;
const HEIGHT: f64 = 460.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 60.0;

/// Parameters that say how much is asked of the cluster, best first.
const LOADS: [&str; 8] =
    ["rho", "rate_factor", "rate", "concurrency", "sessions", "window", "documents", "blocks"];

/// Told apart by people who do not see all colours as well.
const COLOURS: [&str; 11] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999",
    "#6a3d9a", "#b15928", "#8c564b",
];

struct Line<'a> {
    policy: &'a str,
    points: Vec<(f64, f64)>,
}

/// A drawing of `rows`, which must differ in a load.
pub(super) fn render(rows: &[Row]) -> anyhow::Result<String> {
    ensure!(!rows.is_empty(), "there is nothing to draw");
    let load = load(&rows.iter().map(|row| &row.params).collect::<Vec<_>>())?;
    let has_clock = rows.iter().any(|row| row.mean_ttft_ms.is_some());
    let lines = lines(rows, load, has_clock);
    let (x, y) = (Axis::over(&lines, |p| p.0, false), Axis::over(&lines, |p| p.1, has_clock));
    let title = if has_clock { "mean time to first token, ms" } else { "block hit rate, %" };

    let mut svg = String::new();
    let _ = writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"22\" font-size=\"14\">{}: {title} against {load}</text>",
        escaped(&rows[0].workload),
    );
    draw_axes(&mut svg, &x, &y);
    for (i, line) in lines.iter().enumerate() {
        draw_line(&mut svg, line, i, &x, &y);
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// The first load in which points differ, by the parameters of each.
///
/// # Errors
/// They differ in none: there is nothing to draw against.
pub(super) fn load(points: &[&Map<String, Value>]) -> anyhow::Result<&'static str> {
    let differs =
        |load: &&str| points.iter().any(|params| params.get(*load) != points[0].get(*load));
    LOADS.into_iter().find(differs).context(
        "--svg draws against a load: give several values of --rho, --rate-factor, --concurrency or \
         --window",
    )
}

/// Seeds, and whatever else differs beside the load, in the mean.
fn lines<'a>(rows: &'a [Row], load: &str, has_clock: bool) -> Vec<Line<'a>> {
    let mut lines: Vec<Line<'a>> = Vec::new();
    for row in rows {
        if !lines.iter().any(|line| line.policy == row.policy) {
            lines.push(Line { policy: &row.policy, points: Vec::new() });
        }
    }
    let at = |row: &Row| row.params.get(load).and_then(serde_json::Value::as_f64);
    for line in &mut lines {
        let own = || rows.iter().filter(|row| row.policy == line.policy);
        let mut loads: Vec<f64> = own().filter_map(at).collect();
        loads.sort_by(f64::total_cmp);
        loads.dedup();
        let point = |x: f64| {
            let here = own().filter(|row| at(row) == Some(x));
            let value = |row: &Row| {
                if has_clock { row.mean_ttft_ms } else { Some(100.0 * row.block_hit_rate) }
            };
            Some((x, mean(&here.filter_map(value).collect::<Vec<f64>>())?))
        };
        line.points = loads.into_iter().filter_map(point).collect();
    }
    lines
}

/// From data to a share of the drawing.
struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Axis {
    fn over(lines: &[Line<'_>], pick: fn(&(f64, f64)) -> f64, logarithmic: bool) -> Self {
        let values = || lines.iter().flat_map(|line| line.points.iter().map(pick));
        let mut low = values().fold(f64::INFINITY, f64::min);
        let mut high = values().fold(f64::NEG_INFINITY, f64::max);
        if logarithmic {
            low = 10_f64.powf(low.max(1e-3).log10().floor());
            high = 10_f64.powf(high.max(1e-3).log10().ceil());
        }
        if high <= low {
            (low, high) = (low - 0.5, low + 0.5);
        }
        Self { low, high, logarithmic }
    }

    fn share(&self, value: f64) -> f64 {
        let scale = |v: f64| if self.logarithmic { v.max(1e-3).log10() } else { v };
        (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))
    }

    fn marks(&self) -> Vec<f64> {
        if !self.logarithmic {
            return (0..=5)
                .map(|i| self.low + (self.high - self.low) * f64::from(i) / 5.0)
                .collect();
        }
        let decades = (self.high / self.low).log10().round() as i32;
        (0..=decades).map(|decade| self.low * 10_f64.powi(decade)).collect()
    }
}

fn place(x: &Axis, y: &Axis, point: (f64, f64)) -> (f64, f64) {
    let (width, height) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    (LEFT + x.share(point.0) * width, TOP + (1.0 - y.share(point.1)) * height)
}

fn draw_axes(svg: &mut String, x: &Axis, y: &Axis) {
    for mark in y.marks() {
        let (left, at) = place(x, y, (x.low, mark));
        let (right, below) = (WIDTH - RIGHT, at + 4.0);
        let _ = writeln!(
            svg,
            "<line x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" \
             stroke=\"#dddddd\"/>\n<text x=\"{:.1}\" y=\"{below:.1}\" text-anchor=\"end\">{}</text>",
            left - 8.0,
            number(mark),
        );
    }
    for mark in x.marks() {
        let (at, bottom) = place(x, y, (mark, y.low));
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{bottom:.1}\" y2=\"{:.1}\" \
             stroke=\"black\"/>\n<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 5.0,
            bottom + 20.0,
            number(mark),
        );
    }
}

fn draw_line(svg: &mut String, line: &Line<'_>, number: usize, x: &Axis, y: &Axis) {
    let colour = COLOURS[number % COLOURS.len()];
    // Colours come round again with a dash.
    let dash = if number < COLOURS.len() { "" } else { " stroke-dasharray=\"5 3\"" };
    let places: Vec<(f64, f64)> = line.points.iter().map(|point| place(x, y, *point)).collect();
    let points: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
        points.join(" "),
    );
    for (x, y) in places {
        let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
    }
    let (left, at) = (WIDTH - RIGHT + 16.0, TOP + 14.0 + 20.0 * number as f64);
    let _ = writeln!(
        svg,
        "<line x1=\"{left:.1}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"{colour}\" \
         stroke-width=\"2\"{dash}/>\n<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        left + 22.0,
        left + 28.0,
        at + 4.0,
        escaped(line.policy),
    );
}

fn number(value: f64) -> String {
    let text = if value.abs() < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
