//! Plots of lines, below each other: series in, the bytes of an SVG or PNG file out.
//!
//! Owns the look. Never computes what it shows, and writes no file. Invariant: the same series give the same file on
//! every machine; the glyphs come with the program.

use super::font;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use std::ops::Range;
use std::path::{Path, PathBuf};

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
    /// The library that draws failed.
    #[error("the plot cannot be drawn: {0}")]
    Draw(String),
    /// The image could not be encoded.
    #[error("the plot cannot be encoded: {0}")]
    Encode(#[from] png::EncodingError),
}

/// What a plot is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlotFormat {
    /// Lines and text, to any size.
    Svg,
    /// Pixels.
    Png,
}

impl PlotFormat {
    /// What a file's name says, whatever its case.
    ///
    /// # Errors
    /// [`PlotError::Suffix`].
    pub fn of_path(path: &Path) -> Result<Self, PlotError> {
        let suffix = path.extension().map(|s| s.to_ascii_lowercase());
        match suffix.as_deref().and_then(|s| s.to_str()) {
            Some("svg") => Ok(PlotFormat::Svg),
            Some("png") => Ok(PlotFormat::Png),
            _ => Err(PlotError::Suffix(path.to_owned())),
        }
    }
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

/// Draws plots below each other, [`PLOTS_MAX`] at most: the bytes of a file.
///
/// # Errors
/// There is nothing to show, or it cannot be drawn.
pub fn render(format: PlotFormat, plots: &[Plot]) -> Result<Vec<u8>, PlotError> {
    font::register();
    let shown: Vec<Plot> = plots.iter().take(PLOTS_MAX).map(visible).collect();
    if shown.iter().all(|p| p.series.iter().all(|s| s.points.len() < p.style.points_min())) {
        return Err(PlotError::Empty);
    }
    let (width, height) = (WIDTH, HEIGHT * shown.len() as u32);
    match format {
        PlotFormat::Svg => {
            let mut text = String::new();
            draw(SVGBackend::with_string(&mut text, (width, height)), &shown)?;
            Ok(text.into_bytes())
        }
        PlotFormat::Png => {
            let mut pixels = vec![0; width as usize * height as usize * 3];
            draw(BitMapBackend::with_buffer(&mut pixels, (width, height)), &shown)?;
            encoded(&pixels, width, height)
        }
    }
}

/// Pixels of red, green and blue as PNG.
fn encoded(pixels: &[u8], width: u32, height: u32) -> Result<Vec<u8>, PlotError> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(bytes)
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

fn draw<DB: DrawingBackend>(backend: DB, plots: &[Plot]) -> Result<(), PlotError> {
    drawn(&backend.into_drawing_area(), plots).map_err(|e| PlotError::Draw(e.to_string()))
}

fn drawn<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    plots: &[Plot],
) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
    area.fill(&WHITE)?;
    for (area, plot) in area.split_evenly((plots.len(), 1)).iter().zip(plots) {
        let (low, high) = bounds(plot.series.iter().flat_map(|s| s.points.iter().map(|p| p.0)));
        if plot.log_x {
            // room at the edges, also if there is one size
            let (low, high) = if plot.style == Style::Marked { (low * 0.8, high * 1.25) } else { (low, high) };
            let low = low.max(f64::MIN_POSITIVE);
            one(area, plot, (low..if high > low { high } else { low * 2.0 }).log_scale())?;
        } else {
            one(area, plot, low..if high > low { high } else { low + 1.0 })?;
        }
    }
    area.present()
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

    fn svg(plots: &[Plot]) -> String {
        String::from_utf8(render(PlotFormat::Svg, plots).expect("svg")).expect("text")
    }

    #[test]
    fn the_name_says_the_format() {
        assert_eq!(PlotFormat::of_path(Path::new("a.svg")).expect("known"), PlotFormat::Svg);
        assert_eq!(PlotFormat::of_path(Path::new("a.PNG")).expect("known"), PlotFormat::Png);
        let said = PlotFormat::of_path(Path::new("a.pdf")).expect_err("unknown").to_string();
        assert!(said.contains("a.pdf") && said.contains(".svg or .png"), "{said}");
        let text = svg(&[one()]);
        for part in ["<svg", "a trace", "miss ratio", "lru", "<polyline"] {
            assert!(text.contains(part), "{part}");
        }
        let bytes = render(PlotFormat::Png, &[one()]).expect("png");
        assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 4000, "{} bytes", bytes.len());
        assert_eq!(bytes, render(PlotFormat::Png, &[one()]).expect("png"), "the same each time");
    }

    #[test]
    fn plots_stand_below_each_other_and_a_single_point_has_its_mark() {
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
        let text = svg(&plots);
        for part in ["a trace", "policy-8", "one &lt;size&gt; &amp; no miss"] {
            assert!(text.contains(part), "{part}");
        }
        // marks of 9 lines of 3 points and of one point, and one for each of the ten names
        assert_eq!(text.matches("<circle").count(), 9 * 3 + 1 + 10);
        let bytes = render(PlotFormat::Png, &plots).expect("png");
        let (width, height) = (&bytes[16..20], &bytes[20..24]);
        assert_eq!((width, height), (&960u32.to_be_bytes()[..], &1200u32.to_be_bytes()[..]));
        let alone = Plot { series: vec![Series { name: "x".into(), points: vec![(5.0, 1.0)], band: vec![] }], ..one() };
        assert!(render(PlotFormat::Svg, &[alone]).is_err(), "a line needs two points");
    }

    #[test]
    fn what_cannot_be_plotted_says_why() {
        let empty = Plot {
            series: vec![Series { name: "x".into(), points: vec![(0.0, 1.0), (5.0, 1.0)], band: vec![] }],
            ..one()
        };
        let said = render(PlotFormat::Svg, &[empty]).expect_err("a logarithm of 0").to_string();
        assert!(said.contains("nothing to plot"), "{said}");
    }

    #[test]
    fn axes_are_short() {
        assert_eq!(
            [short(0.0), short(0.25), short(1500.0), short(2e6), short(100.0)],
            ["0", "0.25", "1.5k", "2M", "100"]
        );
    }
}
