//! What limits are called, and what they apply to.

use super::*;

#[test]
fn a_limit_is_named_by_the_option_that_gives_it() {
    let all = Limit::bytes(Scope::All, MIB);
    let mut rules = Rules::from(Limits::from([all.clone()]));
    assert_eq!(rules.option(&all), "--allow SIZE");
    assert_eq!(rules.option(&Limit::bytes(Scope::Site, MIB)), "--allow site=SIZE");
    // The limit that applies if none is given.
    assert_eq!(rules.option(&Limit::blocks(0)), "");
    let mut boundary = Boundary {
        mark: "m".to_owned(),
        number: 1,
        count: 1,
        time_ns: 40,
        previous_ns: None,
        held: Vec::new(),
    };
    rules.boundary = Some(boundary.clone());
    assert_eq!(rules.option(&all), "--not-above");
    boundary.previous_ns = Some(20);
    rules.boundary = Some(boundary);
    assert_eq!(rules.option(&all), "--allow SIZE");
}

#[test]
fn limits_of_a_kind_do_not_apply_to_all_memory() {
    let of_kind = Limit::bytes(Scope::Kind(Kind::Device), MIB);
    let limits = |given: &[Limit]| Limits {
        given: given.to_vec(),
        ..Limits::default()
    };
    assert!(limits(&[]).apply_to_all(false));
    assert!(limits(&[of_kind.clone(), Limit::bytes(Scope::Site, MIB)]).apply_to_all(false));
    assert!(!limits(std::slice::from_ref(&of_kind)).apply_to_all(false));
    assert!(limits(std::slice::from_ref(&of_kind)).apply_to_all(true));
    let outliers = Limits {
        outliers: true,
        ..limits(&[of_kind])
    };
    assert!(outliers.apply_to_all(false));
}
