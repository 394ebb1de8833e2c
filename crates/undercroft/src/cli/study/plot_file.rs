//! Plots written to files.
//!
//! Owns the file: SVG or PNG, as its name says. Never draws: `undercroft_study::curves::plot` does.

use std::io;
use std::path::{Path, PathBuf};
use undercroft_study::curves::plot::{Plot, PlotError, PlotFormat, render};

/// Why there is no plot.
#[derive(Debug, thiserror::Error)]
pub enum PlotFileError {
    /// The name says no format, or there is nothing to show.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// The file cannot be written.
    #[error("the plot {} cannot be written: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Writes plots below each other to a file.
///
/// # Errors
/// The name has no known suffix, there is nothing to show, or the file cannot be written.
pub fn save(path: &Path, plots: &[Plot]) -> Result<(), PlotFileError> {
    let bytes = render(PlotFormat::of_path(path)?, plots)?;
    std::fs::write(path, bytes).map_err(|source| PlotFileError::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use undercroft_study::curves::plot::{Series, Style};

    #[test]
    fn what_cannot_be_written_says_why() {
        let series = Series { name: "lru".into(), points: vec![(0.0, 1.0), (10.0, 0.5)], band: vec![] };
        let (title, x_label, y_label) = ("a".into(), "blocks".into(), "miss ratio".into());
        let plots = [Plot { title, x_label, y_label, log_x: false, style: Style::Curves, series: vec![series] }];
        let said = |name: &str| save(Path::new(name), &plots).expect_err("no plot").to_string();
        assert!(said("a.pdf").contains(".svg or .png"));
        for name in ["/none/a.svg", "/none/a.png"] {
            assert!(said(name).contains(&format!("{name} cannot be written")), "{}", said(name));
        }
        let directory = tempfile::tempdir().expect("a directory");
        save(&directory.path().join("a.svg"), &plots).expect("written");
    }
}
