//! Tables in the source: rustfmt gives every cell of a long tuple a line of its own, and leaves these rows as they are.

/// An array of tuples: the cells of a row end with a semicolon.
#[macro_export]
macro_rules! table {
    ($( $($cell:expr),+; )+) => { [$( ($($cell),+) ),+] };
}
