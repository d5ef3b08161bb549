//! The golden tests: the study's figures, each within what is known of its assumptions.
use super::figures::closed_form;
use super::*;

#[test]
fn every_figure_of_the_study_comes_out() {
    let figures = figures(Reading::Study, &|_| {}).expect("replicas are there");
    let off: Vec<_> = figures.iter().filter(|figure| !figure.holds()).collect();
    assert!(off.is_empty(), "{off:#?}");
    // 3 prefills; 12 of chat, 1 skew, 3 costs, 3 + 2 of an infinite cache, 2 of money; 9 of documents; 5 of hosted APIs.
    assert_eq!(figures.iter().filter(|figure| figure.study.is_some()).count(), 3 + 12 + 1 + 3 + 5 + 2 + 9 + 5);
}

#[test]
fn closed_forms_are_the_studys() {
    assert!((closed_form(4) - 0.2580).abs() < 0.0001 && (closed_form(8) - 0.3934).abs() < 0.0001);
}

#[test]
fn hosted_arithmetic_is_exact() {
    let prices = Prices::STUDY;
    let cents = [
        prices.uncached(10, 20_000),
        prices.at_once(10, 20_000),
        prices.one_first(10, 20_000),
        prices.prewarmed(10, 20_000),
    ];
    assert_eq!(cents.map(|cents| (cents * 1e6).round() / 1e6), [40.0, 50.0, 6.8, 7.0]);
    assert_eq!((keys_for(120, 15), keys_for(121, 15), keys_for(1, 15)), (8, 9, 1));
}

#[test]
fn a_table_says_study_ours_and_difference() {
    let figure = |study: f64, ours: f64| Figure {
        of: "chat",
        policy: Some("round_robin"),
        replicas: Some(4),
        figure: "recompute %",
        study: Some(study),
        ours,
        difference: Some(ours - study),
        within: Some(0.5),
    };
    let text = print(&[figure(49.7, 49.6), figure(40.0, 49.6)], Format::Table);
    assert!(text.contains("49.70") && text.contains("-0.10") && text.contains("2 figures of the study, 1 further off"));
}
