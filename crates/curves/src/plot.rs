//! A plot of lines: series in, a file out, SVG or PNG as its name says.
//!
//! Owns the look. Never computes what it shows. Invariant: the same series give the same file on every machine; the glyphs come
//! with the program.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::register_font;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What the legend calls it.
    pub name: String,
    /// Its points, x rising.
    pub points: Vec<(f64, f64)>,
}

/// What is to be shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Above it.
    pub title: String,
    /// Below the x axis.
    pub x_label: String,
    /// Beside the y axis, which begins with 0.
    pub y_label: String,
    /// Whether x is on a logarithmic scale; points with x of 0 or less are then left out.
    pub log_x: bool,
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
    #[error("there is nothing to plot: no series has two points")]
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

/// Writes a plot.
///
/// # Errors
/// The name has no known suffix, there is nothing to show, or the file cannot be written.
pub fn plot(path: &Path, plot: &Plot) -> Result<(), PlotError> {
    static FONT: Once = Once::new();
    FONT.call_once(|| {
        // a font that cannot be read leaves plots without text, which no caller could mend
        let _ = register_font("sans-serif", FontStyle::Normal, dejavu::sans::regular());
    });
    let suffix = path.extension().map(|s| s.to_ascii_lowercase());
    let shown = Plot { series: plot.series.iter().map(|s| visible(s, plot.log_x)).collect(), ..plot.clone() };
    if shown.series.iter().all(|s| s.points.len() < 2) {
        return Err(PlotError::Empty);
    }
    let failed = |what: String| PlotError::Write { path: path.to_owned(), what };
    let size = (WIDTH, HEIGHT);
    match suffix.as_deref().and_then(|s| s.to_str()) {
        Some("svg") => {
            let mut text = String::new();
            draw_on(&SVGBackend::with_string(&mut text, size).into_drawing_area(), &shown).map_err(failed)?;
            std::fs::write(path, text).map_err(|e| failed(e.to_string()))
        }
        Some("png") => {
            // the encoder tells nobody of a file that it cannot open until all is drawn
            std::fs::File::create(path).map_err(|e| failed(e.to_string()))?;
            draw_on(&BitMapBackend::new(path, size).into_drawing_area(), &shown).map_err(failed)
        }
        _ => Err(PlotError::Suffix(path.to_owned())),
    }
}

fn visible(series: &Series, log_x: bool) -> Series {
    let points = series.points.iter().copied();
    let points = points.filter(|p| p.0.is_finite() && p.1.is_finite() && (!log_x || p.0 > 0.0)).collect();
    Series { name: series.name.clone(), points }
}

fn draw_on<DB: DrawingBackend>(area: &DrawingArea<DB, Shift>, plot: &Plot) -> Result<(), String> {
    let xs = || plot.series.iter().flat_map(|s| s.points.iter().map(|p| p.0));
    let (low, high) = (xs().fold(f64::INFINITY, f64::min), xs().fold(f64::NEG_INFINITY, f64::max));
    let high = if high > low { high } else { low + 1.0 };
    let drawn = if plot.log_x { draw(area, plot, (low..high).log_scale()) } else { draw(area, plot, low..high) };
    drawn.map_err(|e| e.to_string())
}

fn draw<DB, X>(area: &DrawingArea<DB, Shift>, plot: &Plot, x: X) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>>
where
    DB: DrawingBackend,
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    area.fill(&WHITE)?;
    let top = plot.series.iter().flat_map(|s| s.points.iter().map(|p| p.1)).fold(0.0, f64::max);
    let top = if top > 0.0 { top * 1.02 } else { 1.0 };
    let mut chart = ChartBuilder::on(area)
        .caption(&plot.title, ("sans-serif", 22))
        .margin(14)
        .x_label_area_size(48)
        .y_label_area_size(64)
        .build_cartesian_2d(x, 0.0..top)?;
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
    for (i, series) in plot.series.iter().enumerate() {
        let color = COLORS[i % COLORS.len()];
        // the colours come again, thinner
        let style = color.stroke_width(if i < COLORS.len() { 2 } else { 1 });
        let line = chart.draw_series(LineSeries::new(series.points.iter().copied(), style))?;
        line.label(&series.name).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    if plot.series.len() > 1 || !plot.series[0].name.is_empty() {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .label_font(("sans-serif", 15))
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .draw()?;
    }
    area.present()
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
        let series = Series { name: "lru".into(), points: vec![(0.0, 1.0), (10.0, 0.5), (1000.0, 0.25)] };
        let (x_label, y_label) = ("blocks".into(), "miss ratio".into());
        Plot { title: "a trace".into(), x_label, y_label, log_x: true, series: vec![series] }
    }

    #[test]
    fn the_name_says_the_format() {
        let dir = tempfile::tempdir().expect("a directory");
        let (svg, png) = (dir.path().join("a.svg"), dir.path().join("a.PNG"));
        plot(&svg, &one()).expect("svg");
        let text = std::fs::read_to_string(&svg).expect("it is there");
        for part in ["<svg", "a trace", "miss ratio", "lru", "<polyline"] {
            assert!(text.contains(part), "{part}");
        }
        plot(&png, &one()).expect("png");
        let bytes = std::fs::read(&png).expect("it is there");
        assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 4000, "{} bytes", bytes.len());
    }

    #[test]
    fn what_cannot_be_plotted_says_why() {
        let said = |name: &str, p: &Plot| plot(Path::new(name), p).expect_err("no plot").to_string();
        assert!(said("a.pdf", &one()).contains(".svg or .png"));
        assert!(said("/none/a.svg", &one()).contains("/none/a.svg cannot be written"));
        assert!(said("/none/a.png", &one()).contains("/none/a.png cannot be written"));
        let empty = Plot { series: vec![Series { name: "x".into(), points: vec![(0.0, 1.0), (5.0, 1.0)] }], ..one() };
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
