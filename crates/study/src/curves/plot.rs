//! Plots of lines, below each other: series in, a file out, SVG or PNG as its name says.
//!
//! Owns the look. Never computes what it shows. Invariant: the same series give the same file on every machine; the
//! glyphs come with the program.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::register_font;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What the legend calls it.
    pub name: String,
    /// Its points, x rising.
    pub points: Vec<(f64, f64)>,
    /// What lies between which values with a probability of 95 %: x, low, high; x rising. Empty of what is exact.
    pub band: Vec<(f64, f64, f64)>,
}

/// How lines are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// Lines alone, over a y axis that begins with 0: curves of many points.
    #[default]
    Curves,
    /// With a mark at each point, over the part of the y axis where there are any: from 0 would hide what lies between
    /// lines that are close together.
    Marked,
}

/// What is to be shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Above it.
    pub title: String,
    /// Below the x axis.
    pub x_label: String,
    /// Beside the y axis.
    pub y_label: String,
    /// Whether x is on a logarithmic scale; points with x of 0 or less are then left out.
    pub log_x: bool,
    /// How the lines are drawn.
    pub style: Style,
    /// The lines.
    pub series: Vec<Series>,
}

/// Why there is no plot.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// The file's name says no format.
    #[error("{} is no name for a plot; end it with .svg or .png", .0.display())]
    Suffix(PathBuf),
    /// There is nothing to show.
    #[error("there is nothing to plot: no line has points")]
    Empty,
    /// The file cannot be written.
    #[error("the plot {} cannot be written: {what}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system or the encoder said.
        what: String,
    },
}

const WIDTH: u32 = 960;
const HEIGHT: u32 = 600;
/// Told apart also by those who do not see all colours (Okabe and Ito, 2008).
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
];

/// Plots in one file at most: what comes after is left out.
pub const PLOTS_MAX: usize = 64;

/// Writes plots below each other, [`PLOTS_MAX`] at most.
///
/// # Errors
/// The name has no known suffix, there is nothing to show, or the file cannot be written.
pub fn save(path: &Path, plots: &[Plot]) -> Result<(), PlotError> {
    static FONT: Once = Once::new();
    FONT.call_once(|| {
        // a font that cannot be read leaves plots without text, which no caller could mend
        let _ = register_font("sans-serif", FontStyle::Normal, dejavu::sans::regular());
    });
    let suffix = path.extension().map(|s| s.to_ascii_lowercase());
    let shown: Vec<Plot> = plots.iter().take(PLOTS_MAX).map(visible).collect();
    if shown.iter().all(|p| p.series.iter().all(|s| s.points.len() < p.style.points_min())) {
        return Err(PlotError::Empty);
    }
    let failed = |what: String| PlotError::Write { path: path.to_owned(), what };
    let size = (WIDTH, HEIGHT * shown.len() as u32);
    match suffix.as_deref().and_then(|s| s.to_str()) {
        Some("svg") => {
            let mut text = String::new();
            draw(&SVGBackend::with_string(&mut text, size).into_drawing_area(), &shown).map_err(failed)?;
            std::fs::write(path, text).map_err(|e| failed(e.to_string()))
        }
        Some("png") => {
            // the encoder tells nobody of a file that it cannot open until all is drawn
            std::fs::File::create(path).map_err(|e| failed(e.to_string()))?;
            draw(&BitMapBackend::new(path, size).into_drawing_area(), &shown).map_err(failed)
        }
        _ => Err(PlotError::Suffix(path.to_owned())),
    }
}

impl Style {
    /// Points without which a line shows nothing.
    fn points_min(self) -> usize {
        match self {
            Style::Curves => 2,
            Style::Marked => 1,
        }
    }

    /// The y axis for points from `low` to `high`.
    fn y_axis(self, low: f64, high: f64) -> Range<f64> {
        match self {
            Style::Curves => 0.0..if high > 0.0 { high * 1.02 } else { 1.0 },
            Style::Marked => {
                let room = ((high - low) * 0.1).max(0.005);
                (low - room).max(0.0)..high + room
            }
        }
    }
}

/// What a plot can show of what it is given.
fn visible(plot: &Plot) -> Plot {
    let shown = |p: &(f64, f64)| p.0.is_finite() && p.1.is_finite() && (!plot.log_x || p.0 > 0.0);
    let series = plot.series.iter().map(|s| Series {
        name: s.name.clone(),
        points: s.points.iter().copied().filter(shown).collect(),
        band: s.band.iter().copied().filter(|&(x, low, _)| shown(&(x, low))).collect(),
    });
    Plot { series: series.collect(), ..plot.clone() }
}

/// The least and the greatest; from 0 to 1 if there are none.
fn bounds(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let (low, high) = (values.clone().fold(f64::INFINITY, f64::min), values.fold(f64::NEG_INFINITY, f64::max));
    if low <= high { (low, high) } else { (0.0, 1.0) }
}

fn draw<DB: DrawingBackend>(area: &DrawingArea<DB, Shift>, plots: &[Plot]) -> Result<(), String> {
    area.fill(&WHITE).map_err(|e| e.to_string())?;
    for (area, plot) in area.split_evenly((plots.len(), 1)).iter().zip(plots) {
        let (low, high) = bounds(plot.series.iter().flat_map(|s| s.points.iter().map(|p| p.0)));
        let drawn = if plot.log_x {
            // room at the edges, also if there is one size
            let (low, high) = if plot.style == Style::Marked { (low * 0.8, high * 1.25) } else { (low, high) };
            let low = low.max(f64::MIN_POSITIVE);
            one(area, plot, (low..if high > low { high } else { low * 2.0 }).log_scale())
        } else {
            one(area, plot, low..if high > low { high } else { low + 1.0 })
        };
        drawn.map_err(|e| e.to_string())?;
    }
    area.present().map_err(|e| e.to_string())
}

fn one<DB, X>(area: &DrawingArea<DB, Shift>, plot: &Plot, x: X) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>>
where
    DB: DrawingBackend,
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let ys = plot.series.iter().flat_map(|s| s.points.iter().map(|p| p.1).chain(s.band.iter().map(|b| b.2)));
    let (low, high) = bounds(ys);
    let mut chart = ChartBuilder::on(area)
        .caption(&plot.title, ("sans-serif", 22))
        .margin(14)
        .x_label_area_size(48)
        .y_label_area_size(64)
        .build_cartesian_2d(x, plot.style.y_axis(low, high))?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .label_style(("sans-serif", 15))
        .axis_desc_style(("sans-serif", 17))
        .x_desc(&plot.x_label)
        .y_desc(&plot.y_label)
        .x_label_formatter(&|x| short(*x))
        .y_label_formatter(&|y| short(*y))
        .draw()?;
    let marked = plot.style == Style::Marked;
    for (i, series) in plot.series.iter().enumerate() {
        let (color, round) = (COLORS[i % COLORS.len()], i / COLORS.len());
        // the colours come again: thinner, or with rings for marks
        let style = color.stroke_width(if round == 0 || marked { 2 } else { 1 });
        if series.band.len() > 1 {
            let low = series.band.iter().map(|&(x, low, _)| (x, low));
            let high = series.band.iter().rev().map(|&(x, _, high)| (x, high));
            chart.draw_series(std::iter::once(Polygon::new(low.chain(high).collect::<Vec<_>>(), color.mix(0.18))))?;
        }
        let line = chart.draw_series(LineSeries::new(series.points.iter().copied(), style))?;
        line.label(&series.name).legend(move |(x, y)| {
            // a circle without an extent is none
            let mark = if marked { mark((10, 0), round, color) } else { Circle::new((10, 0), 0, TRANSPARENT) };
            EmptyElement::at((x, y)) + PathElement::new([(0, 0), (20, 0)], style) + mark
        });
        if marked {
            let marks = series.points.iter().map(|&at| EmptyElement::at(at) + mark((0, 0), round, color));
            chart.draw_series(marks)?;
        }
    }
    let named = plot.series.len() > 1 || plot.series.first().is_some_and(|s| !s.name.is_empty());
    if named {
        let corner = if marked { SeriesLabelPosition::LowerLeft } else { SeriesLabelPosition::UpperRight };
        chart
            .configure_series_labels()
            .position(corner)
            .label_font(("sans-serif", 15))
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .draw()?;
    }
    Ok(())
}

/// A mark on a line: filled, or a ring on lines that take a colour again.
fn mark(at: (i32, i32), round: usize, color: RGBColor) -> Circle<(i32, i32), u32> {
    let style: ShapeStyle = if round == 0 { color.filled() } else { color.stroke_width(1) };
    Circle::new(at, 3 + 2 * round as u32, style)
}

/// A number as an axis shows it: `1500` is `1.5k`.
fn short(x: f64) -> String {
    let (factor, unit) = match x.abs() {
        a if a >= 1e9 => (1e9, "G"),
        a if a >= 1e6 => (1e6, "M"),
        a if a >= 1e3 => (1e3, "k"),
        _ => (1.0, ""),
    };
    // at most three places, without those that say nothing
    let text = format!("{:.3}", x / factor);
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> Plot {
        let series = Series { name: "lru".into(), points: vec![(0.0, 1.0), (10.0, 0.5), (1000.0, 0.25)], band: vec![] };
        let (x_label, y_label) = ("blocks".into(), "miss ratio".into());
        Plot { title: "a trace".into(), x_label, y_label, log_x: true, style: Style::Curves, series: vec![series] }
    }

    #[test]
    fn the_name_says_the_format() {
        let dir = tempfile::tempdir().expect("a directory");
        let (svg, png) = (dir.path().join("a.svg"), dir.path().join("a.PNG"));
        save(&svg, &[one()]).expect("svg");
        let text = std::fs::read_to_string(&svg).expect("it is there");
        for part in ["<svg", "a trace", "miss ratio", "lru", "<polyline"] {
            assert!(text.contains(part), "{part}");
        }
        save(&png, &[one()]).expect("png");
        let bytes = std::fs::read(&png).expect("it is there");
        assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 4000, "{} bytes", bytes.len());
    }

    #[test]
    fn plots_stand_below_each_other_and_a_single_point_has_its_mark() {
        let dir = tempfile::tempdir().expect("a directory");
        let (svg, png) = (dir.path().join("a.svg"), dir.path().join("a.png"));
        let line = |name: String, at: f64| Series {
            name,
            points: vec![(10.0, at), (1000.0, at / 2.0), (5000.0, 0.0)],
            band: vec![],
        };
        let many = (0..9).map(|i| line(format!("policy-{i}"), 0.1 * f64::from(i))).collect();
        let point = Series { name: "lru".into(), points: vec![(1.0, 0.0)], band: vec![] };
        let plots = [
            Plot { style: Style::Marked, series: many, ..one() },
            Plot { title: "one <size> & no miss".into(), style: Style::Marked, series: vec![point], ..one() },
        ];
        save(&svg, &plots).expect("svg");
        let text = std::fs::read_to_string(&svg).expect("it is there");
        for part in ["a trace", "policy-8", "one &lt;size&gt; &amp; no miss"] {
            assert!(text.contains(part), "{part}");
        }
        // marks of 9 lines of 3 points and of one point, and one for each of the ten names
        assert_eq!(text.matches("<circle").count(), 9 * 3 + 1 + 10);
        save(&png, &plots).expect("png");
        let bytes = std::fs::read(&png).expect("it is there");
        let (width, height) = (&bytes[16..20], &bytes[20..24]);
        assert_eq!((width, height), (&960u32.to_be_bytes()[..], &1200u32.to_be_bytes()[..]));
        let alone = Plot { series: vec![Series { name: "x".into(), points: vec![(5.0, 1.0)], band: vec![] }], ..one() };
        assert!(save(&svg, &[alone]).is_err(), "a line needs two points");
    }

    #[test]
    fn what_cannot_be_plotted_says_why() {
        let said =
            |name: &str, p: &Plot| save(Path::new(name), std::slice::from_ref(p)).expect_err("no plot").to_string();
        assert!(said("a.pdf", &one()).contains(".svg or .png"));
        assert!(said("/none/a.svg", &one()).contains("/none/a.svg cannot be written"));
        assert!(said("/none/a.png", &one()).contains("/none/a.png cannot be written"));
        let empty = Plot {
            series: vec![Series { name: "x".into(), points: vec![(0.0, 1.0), (5.0, 1.0)], band: vec![] }],
            ..one()
        };
        assert!(said("a.svg", &empty).contains("nothing to plot"), "a logarithm of 0");
    }

    #[test]
    fn axes_are_short() {
        assert_eq!(
            [short(0.0), short(0.25), short(1500.0), short(2e6), short(100.0)],
            ["0", "0.25", "1.5k", "2M", "100"]
        );
    }
}
