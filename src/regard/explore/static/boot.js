// Starts the page. A module that the parser meets would be refused by 'strict-dynamic'; one that this script inserts is not.
const map = JSON.parse(document.querySelector('script[type="importmap"]')?.textContent ?? "");
const main = document.createElement("script");
main.type = "module";
main.src = map.imports["#main.js"];
document.head.append(main);
