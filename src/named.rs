//! Enums whose values have names.

/// Declares enums with their values' names: `ALL`, `name`, and `from_name`, its inverse.
#[macro_export]
macro_rules! named {
    ($( $(#[$meta:meta])* pub enum $name:ident {
        $( $(#[$variant_meta:meta])* $variant:ident = $text:literal, )*
    } )*) => { $(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $( $(#[$variant_meta])* $variant, )* }

        // An enum of the command need not have a user of each.
        #[allow(dead_code)]
        impl $name {
            /// In the order of their declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            pub const fn name(self) -> &'static str {
                match self { $( $name::$variant => $text, )* }
            }

            pub fn from_name(name: &str) -> Option<$name> {
                match name { $( $text => Some($name::$variant), )* _ => None }
            }
        }
    )* };
}
