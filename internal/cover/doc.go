// Package cover decides who goes where links between single pairs have broken, so that
// all who stay reach each other. Everybody who knows the same pairs comes to the same answer.
package cover
