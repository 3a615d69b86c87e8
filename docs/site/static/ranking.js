/* Ranks the pages for a question of several words. Sphinx shows only pages that hold all words; here any word counts,
   rare words and words of headings count more, and long pages less. Loaded on the search page, see conf.py. */
"use strict";

const HEADING = 2; // a word in a heading counts this many times,
const TITLE = 3; // and in the title of a page
const LENGTH = 0.2; // how much a page's length counts, 0 … 1
const DECISION = 0.5; // decisions come after pages for users
const LEAST = 0.25; // pages with a smaller share of the best one's score are not shown

const asList = (found) => (found === undefined ? [] : [].concat(found));

/* The pages of a word; of the words that begin with it if no page has it. */
const pagesOf = (index, word) =>
  Object.hasOwn(index, word) || word.length < 4
    ? asList(index[word])
    : Object.keys(index)
        .filter((each) => each.startsWith(word))
        .flatMap((each) => asList(index[each]));

const wordsOf = (text) => text.toLowerCase().split(/[^\p{L}\p{N}_]+/u);

/* The heading of a page whose words weigh most, as [title, anchor]; the page itself if no heading has any. */
const headingOf = (page, weights) => {
  const { titles, alltitles } = Search._index;
  let [most, best] = [0, [titles[page], ""]];
  Object.entries(alltitles).forEach(([title, places]) => {
    const place = places.find(([file, id]) => file === page && id !== null);
    const held = [...weights].filter(([word]) => wordsOf(title).some((each) => each.startsWith(word)));
    const weight = held.reduce((sum, [, each]) => sum + each, 0);
    if (place && weight > most) [most, best] = [weight, [`${titles[page]} > ${title}`, `#${place[1]}`]];
  });
  return best;
};

const ranked = (words, excluded) => {
  const { terms, titleterms, docnames, filenames, titles } = Search._index;
  const lengths = docnames.map(() => 0);
  Object.values(terms).forEach((found) => asList(found).forEach((page) => lengths[page]++));
  const mean = lengths.reduce((sum, each) => sum + each, 0) / lengths.length;
  const scores = docnames.map(() => 0);
  const weights = new Map();
  words.forEach((word) => {
    const headings = new Set(pagesOf(titleterms, word));
    const pages = new Set([...pagesOf(terms, word), ...headings]);
    weights.set(word, Math.log(1 + (docnames.length - pages.size + 0.5) / (pages.size + 0.5)));
    pages.forEach((page) => {
      const weight = weights.get(word) * (docnames[page].startsWith("decisions/") ? DECISION : 1);
      const once = weight / (1 - LENGTH + (LENGTH * lengths[page]) / mean);
      const titled = wordsOf(titles[page]).some((each) => each.startsWith(word));
      scores[page] += once * (titled ? TITLE : headings.has(page) ? HEADING : 1);
    });
  });
  excluded.forEach((word) => pagesOf(terms, word).forEach((page) => (scores[page] = 0)));
  const least = Math.max(LEAST * Math.max(...scores), Number.MIN_VALUE);
  return docnames
    .map((name, page) => [name, ...headingOf(page, weights), null, scores[page], filenames[page], SearchResultKind.text])
    .filter((result) => result[4] >= least);
};

// Before Sphinx's own listener, which starts the search of the page's address.
document.addEventListener("DOMContentLoaded", () => {
  Search.performTermsSearch = ranked;
  Scorer.title = 0; // headings that hold the whole question: they are counted above
});
