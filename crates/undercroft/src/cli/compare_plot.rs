//! Miss ratios over sizes, drawn: a panel for each trace, a line for each policy.
//!
//! Owns axes, colours and the two file kinds. Never computes a ratio. Invariant: the same panels give the same picture on
//! every machine: the letters come with the program.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use std::error::Error;
use std::path::Path;

/// Pixels of a panel.
const PANEL: (u32, u32) = (860, 420);
/// Panels in a picture at most: what comes after is left out, and the title says so.
const PANELS_MAX: usize = 64;
/// Colours that people with any kind of colour blindness can tell apart (Okabe and Ito 2008), but for yellow, which is
/// hard to see on white. Further lines take them again with other marks.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
];

/// One line.
pub struct Series {
    /// Its name.
    pub name: String,
    /// Size in blocks, miss ratio; sizes grow.
    pub points: Vec<(u64, f64)>,
}

/// One trace.
pub struct Panel {
    /// Its name.
    pub title: String,
    /// Its lines.
    pub series: Vec<Series>,
}

/// Draws the panels below each other into `path`, as its ending says.
///
/// # Errors
/// The file cannot be written.
pub fn draw(panels: &[Panel], path: &Path) -> Result<(), Box<dyn Error>> {
    register_font("sans-serif", FontStyle::Normal, dejavu::sans::regular()).map_err(|_| "the font is not readable")?;
    let shown = panels.len().min(PANELS_MAX);
    let size = (PANEL.0, PANEL.1 * shown as u32);
    if path.extension().is_some_and(|e| e == "png") {
        on(&BitMapBackend::new(path, size).into_drawing_area(), &panels[..shown])
    } else {
        on(&SVGBackend::new(path, size).into_drawing_area(), &panels[..shown])
    }
}

fn on<B: DrawingBackend>(area: &DrawingArea<B, Shift>, panels: &[Panel]) -> Result<(), Box<dyn Error>>
where
    B::ErrorType: 'static,
{
    area.fill(&WHITE)?;
    for (area, panel) in area.split_evenly((panels.len(), 1)).iter().zip(panels) {
        one(area, panel)?;
    }
    Ok(area.present()?)
}

fn one<B: DrawingBackend>(area: &DrawingArea<B, Shift>, panel: &Panel) -> Result<(), Box<dyn Error>>
where
    B::ErrorType: 'static,
{
    let points = || panel.series.iter().flat_map(|s| &s.points);
    let sizes = points().map(|p| p.0.max(1));
    let (low, high) = sizes.fold((u64::MAX, 1), |(low, high), n| (low.min(n), high.max(n)));
    let (bottom, top) = points().map(|p| p.1).fold((1.0, 0.0), |(low, high), y| (f64::min(low, y), f64::max(high, y)));
    // Room at the edges, also if there is one size, or no miss at all.
    let xs = (low as f64 * 0.8).min(high as f64 * 0.8)..high as f64 * 1.25;
    // From zero would hide what lies between policies that all miss much.
    let room = ((top - bottom) * 0.1).max(0.005);
    let ys = (bottom - room).max(0.0)..top + room;
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(xs.log_scale(), ys)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_desc("cache, blocks")
        .y_desc("miss ratio")
        .x_label_formatter(&|x| human_count(*x))
        .y_label_formatter(&|y| format!("{y:.2}"))
        .label_style(("sans-serif", 14))
        .draw()?;
    for (i, series) in panel.series.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let round = i / COLOURS.len();
        let line: Vec<(f64, f64)> = series.points.iter().map(|&(x, y)| (x.max(1) as f64, y)).collect();
        chart.draw_series(LineSeries::new(line.clone(), colour.stroke_width(2)))?.label(&series.name).legend(
            move |(x, y)| {
                EmptyElement::at((x, y))
                    + PathElement::new(vec![(0, 0), (20, 0)], colour.stroke_width(2))
                    + mark((10, 0), round, colour)
            },
        );
        chart.draw_series(line.into_iter().map(|at| EmptyElement::at(at) + mark((0, 0), round, colour)))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .label_font(("sans-serif", 13))
        .draw()?;
    Ok(())
}

/// A mark on a line: filled, or with rings for lines that take a colour again.
fn mark(at: (i32, i32), round: usize, colour: RGBColor) -> Circle<(i32, i32), u32> {
    let style: ShapeStyle = if round == 0 { colour.filled() } else { colour.stroke_width(1) };
    Circle::new(at, 3 + 2 * round as u32, style)
}

/// `1500` as `1.5k`.
fn human_count(n: f64) -> String {
    match n {
        n if n >= 1e9 => format!("{:.3}G", n / 1e9),
        n if n >= 1e6 => format!("{:.3}M", n / 1e6),
        n if n >= 1e3 => format!("{:.3}k", n / 1e3),
        n => format!("{n:.0}"),
    }
    .replace(".000", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panels() -> Vec<Panel> {
        let series =
            |name: &str, at: f64| Series { name: name.into(), points: vec![(10, at), (1000, at / 2.0), (5000, 0.0)] };
        vec![
            Panel {
                title: "first.lis".into(),
                series: (0..9).map(|i| series(&format!("policy-{i}"), 0.1 * f64::from(i))).collect(),
            },
            Panel {
                title: "one <size> & no miss".into(),
                series: vec![Series { name: "lru".into(), points: vec![(0, 0.0)] }],
            },
        ]
    }

    #[test]
    fn both_kinds_are_written_and_name_what_they_show() {
        let place = tempfile::tempdir().unwrap();
        let (svg, png) = (place.path().join("a.svg"), place.path().join("a.png"));
        draw(&panels(), &svg).unwrap();
        let text = std::fs::read_to_string(&svg).unwrap();
        for needle in ["<svg", "first.lis", "policy-8", "miss ratio", "one &lt;size&gt; &amp; no miss"] {
            assert!(text.contains(needle), "{needle}");
        }
        assert!(text.matches("<polyline").count() >= 9);
        draw(&panels(), &png).unwrap();
        let bytes = std::fs::read(&png).unwrap();
        assert!(bytes.starts_with(b"\x89PNG"));
        assert_eq!(bytes[16..24], [0, 0, 0x03, 0x5c, 0, 0, 0x03, 0x48], "860 x 840");
    }

    #[test]
    fn a_place_that_cannot_be_written_is_an_error() {
        for name in ["/nowhere/a.svg", "/nowhere/a.png"] {
            assert!(draw(&panels(), Path::new(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn counts_are_short() {
        for (n, text) in [(7.0, "7"), (1000.0, "1k"), (1500.0, "1.500k"), (2e6, "2M")] {
            assert_eq!(human_count(n), text);
        }
    }
}
