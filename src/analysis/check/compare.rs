//! The one place that compares what was found with what is allowed, by limits and by the baseline.

use super::figure::{Figure, Judgement};
use super::limits::{FailOn, Limit, Measure, Scope};
use super::sites::{Judged, Standing};
use super::totals::{Hidden, Whole};
use super::{BeyondBaseline, Breach, OverLimit, Rules, Unseen};
use crate::analysis::baseline::Paired;
use crate::analysis::report::Row;
use crate::tally::Tally;

/// What breaks a limit, and what may break one.
pub(super) struct Comparison<'c> {
    rules: &'c Rules,
    hidden: &'c Hidden,
    pub breaches: Vec<Breach>,
    pub unseen: Vec<Unseen>,
}

impl<'c> Comparison<'c> {
    pub fn new(rules: &'c Rules, hidden: &'c Hidden) -> Comparison<'c> {
        Comparison {
            rules,
            hidden,
            breaches: Vec::new(),
            unseen: Vec::new(),
        }
    }

    /// Totals against their limits. `objects`: with most first.
    pub fn totals(&mut self, whole: &Whole, objects: &[Row]) {
        for limit in self.rules.effective() {
            let (of, measure, most) = (&limit.of, limit.measure, limit.most);
            let (mut site, mut of_site) = (None, None);
            let (figure, (why, next)) = match (of, measure) {
                (Scope::Site, _) => continue,
                (Scope::Kind(_), Measure::Objects) => {
                    let rows = || objects.iter().filter(|row| row.is_in(of));
                    (site, of_site) = rows().next().map(|row| (row.name(), row.count)).unzip();
                    let found = Tally::total(rows().map(Row::tally)).count;
                    (Figure::exact(found), (String::new(), String::new()))
                }
                (Scope::Pattern(pattern), _) => whole.in_pattern(pattern, self.hidden, most),
                (Scope::All | Scope::Kind(_), _) => (whole.sum(of).figure(measure), whole.why_undecided()),
            };
            match figure.against(most) {
                Judgement::Kept => {}
                Judgement::Undecided => {
                    let (range, allowed) = (figure.range(measure), measure.words(most));
                    let what = format!("{range} held{} with {allowed} allowed: {why}", of.words());
                    self.unseen.push(Unseen::part(self.rules.option(&limit), what, next));
                }
                Judgement::Broken(found) => self.breaches.push(Breach::Total(OverLimit {
                    limit,
                    found,
                    site,
                    of_site,
                })),
            }
        }
    }

    /// Rows against the limit of each call site and against the baseline.
    /// `measure`: that of the rows.
    pub fn sites<'a>(&mut self, measure: Measure, rows: Vec<Row<'a>>, paired: Option<&Paired>) -> Vec<Judged<'a>> {
        let mut per_site = self.rules.limits.given.iter();
        let per_site = per_site.find(|limit| limit.of == Scope::Site && limit.measure == measure);
        let totals = self.breaches.clone();
        // The first call site that may break its limit, and the first that may have grown.
        let mut doubts = [None, None];
        let mut judged = Vec::with_capacity(rows.len());
        for (nth, row) in rows.into_iter().enumerate() {
            let figure = row.figure(self.hidden);
            let before = self.breaches.len();
            if let Some(limit) = per_site.filter(|limit| exceeds(&row, figure, limit.most, &mut doubts[0])) {
                self.breaches.push(Breach::Total(OverLimit {
                    limit: limit.clone(),
                    found: figure.found,
                    site: Some(row.name()),
                    of_site: None,
                }));
            }
            let known = paired.map(|paired| paired.known(nth));
            let of_baseline = known.map(|known| self.against_baseline(&row, figure, known, &mut doubts[1]));
            let (standing, breach) = of_baseline.unzip();
            self.breaches.extend(breach.flatten());
            judged.push(Judged {
                standing,
                known: known.flatten(),
                to_blame: self.breaches.len() > before || totals.iter().any(|breach| breach.contains(&row)),
                only_by_class: false,
                row,
            });
        }
        if measure == Measure::Bytes {
            self.without_stacks(per_site, doubts);
        }
        judged
    }

    /// How a row compares with what the baseline has of it, and whether that is a reason to fail.
    fn against_baseline(
        &self,
        row: &Row,
        figure: Figure,
        known: Option<Tally>,
        doubt: &mut Option<Doubt>,
    ) -> (Standing, Option<Breach>) {
        let (limits, measure) = (&self.rules.limits, row.measure());
        let known = known.map(|known| measure.of(known));
        // The tolerance applies to growth only, not to sites that the baseline does not contain.
        let limit = known.map_or(0, |known| limits.tolerance.allows(known, measure));
        let standing = match known {
            None => Standing::New,
            Some(_) if exceeds(row, figure, limit, doubt) => Standing::Grown,
            Some(_) => Standing::Known,
        };
        let fails = match (standing, limits.fail_on) {
            (Standing::New, FailOn::New | FailOn::Grown) | (Standing::Grown, FailOn::Grown) => true,
            // All memory fails, known or not; objects do not, since every program has some.
            (Standing::New | Standing::Grown, FailOn::Any) => measure == Measure::Objects,
            _ => false,
        };
        let breach = || BeyondBaseline {
            site: row.name(),
            measure,
            kind: row.kind_of_objects(),
            known,
            limit,
            found: figure.found,
        };
        (standing, fails.then(|| Breach::Baseline(breach())))
    }

    /// Limits of single call sites that may be broken, because it is not known which call site holds the memory without a stack.
    fn without_stacks(&mut self, per_site: Option<&Limit>, doubts: [Option<Doubt>; 2]) {
        let (rules, hidden) = (self.rules, self.hidden);
        let has_hidden = hidden.tally.count > 0;
        let [of_site, grown] = doubts;
        let of_other = per_site.and_then(|limit| {
            let (name, figure) = ("a call site that was not seen".to_owned(), hidden.around(0, 0));
            (figure.against(limit.most) != Judgement::Kept).then_some((name, figure, limit.most))
        });
        let why = |(site, figure, allowed): Doubt| {
            let (range, allowed) = (figure.range(Measure::Bytes), Measure::Bytes.words(allowed));
            format!("{site} holds {range} with {allowed} allowed: {}", hidden.why())
        };
        let mut add = |rule: &str, what: String| self.unseen.push(Unseen::part(rule, what, hidden.next()));
        if let Some(doubt) = of_site.or(of_other) {
            add("--allow site=SIZE", why(doubt));
        }
        let has_baseline = rules.baseline.is_some();
        match (rules.limits.fail_on, grown) {
            (FailOn::New | FailOn::Grown, _) if has_baseline && has_hidden => {
                let may_be_new = "they may be of a call site that the baseline lacks";
                add("--baseline", format!("{}: {may_be_new}", hidden.why()));
            }
            (FailOn::Grown, Some(doubt)) => add("--baseline", why(doubt)),
            _ => {}
        }
        if rules.previous.is_some() && has_hidden {
            add(
                "--same-as-last",
                format!("{}: any call site may hold them", hidden.why()),
            );
        }
    }
}

/// A call site that may have more than is allowed: its name, its figure and what is allowed.
type Doubt = (String, Figure, u64);

/// Whether a row has more than is allowed for certain. The first that may have more is kept in `doubt`.
fn exceeds(row: &Row, figure: Figure, allowed: u64, doubt: &mut Option<Doubt>) -> bool {
    let judgement = figure.against(allowed);
    if judgement == Judgement::Undecided && doubt.is_none() {
        *doubt = Some((row.name(), figure, allowed));
    }
    matches!(judgement, Judgement::Broken(_))
}
