//! Enums whose numbers are part of a file format.

/// Declares an enum with explicit numbers, and `from_number`, its inverse.
macro_rules! numbered {
    ($(#[$meta:meta])* pub enum $name:ident: $number:ident {
        $( $(#[$variant_meta:meta])* $variant:ident = $value:literal, )*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr($number)]
        pub enum $name { $( $(#[$variant_meta])* $variant = $value, )* }

        impl $name {
            /// In the order of their numbers.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// `None` if this version does not know the number.
            pub const fn from_number(number: $number) -> Option<$name> {
                match number { $( $value => Some($name::$variant), )* _ => None }
            }
        }
    };
}

pub(crate) use numbered;
